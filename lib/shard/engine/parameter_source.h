#pragma once

// The parameters that fully_shard() shards, and the source of their first values when they are on the meta
// device.
//
//   auto model = nn::make_decoder(options, at::kMeta);
//   auto engine = fully_shard(*model, shard_options, communicator, nullptr, {&source, at::kCPU});
//
// No rank ever holds the whole model: the engine reads its own part of one parameter after another into its
// shards. Memory that a source needs for a parameter exists for one parameter at a time.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/util/rectangle.h"
#include "model/families/parameter_part.h"
#include "shard/engine/tensor_slice.h"

namespace fsdp::shard {

/// A parameter under the first of its names; tied names share one tensor and appear once.
struct NamedParameter {
  std::string name;
  at::Tensor tensor;
  std::vector<std::string> other_names{};  ///< further names of a tied parameter, in the order of the modules
  int64_t shard_dimension = 0;             ///< dimension on which the per_parameter layout cuts it
  /// The part of the parameter that the tensor is, if it is not all of it (ShardOptions::parts).
  std::optional<nn::ParameterPart> part = std::nullopt;

  std::vector<int64_t> whole_shape() const { return part ? part->whole_shape : tensor.sizes().vec(); }
  /// Returns elements `local` of the tensor, in their order, as parts of the parameter.
  std::vector<util::Rectangle> parts_of(const util::Rectangle& local) const;
};

class ParameterSource {
 public:
  virtual ~ParameterSource() = default;

  /// Fills `out` with the elements of `parts` of the parameter, which ascend, one after another. `out` is
  /// contiguous fp32 (uint8 for a quantized weight) in host memory. parameter.tensor is on the meta device
  /// and has the whole parameter's shape. Called once on every rank for every parameter in the same order,
  /// with an empty part where the rank keeps nothing of it. May be collective, which makes fully_shard()
  /// collective.
  virtual void read(const NamedParameter& parameter, const std::vector<util::Rectangle>& parts,
                    const at::Tensor& out) = 0;

  /// Fills a buffer of the model's state with its first values, or leaves the values of its module. Called on
  /// every rank for every buffer in the same order. May be collective.
  virtual void read_buffer(const NamedTensor& /*buffer*/) {}
};

/// How fully_shard() treats parameters on the meta device; others keep their values.
struct Materialize {
  /// Used by fully_shard() only. Null: no parameter is on the meta device.
  ParameterSource* source = nullptr;
  at::Device device = at::kCPU;  ///< device on which the parameters are gathered and used
};

/// Throws Error(kUsage) for a parameter on the meta device without a source.
void require_source(const Materialize& materialize, const std::string& parameter);

}  // namespace fsdp::shard
