#pragma once

// Where the first values of parameters come from when the model lies on the meta device.
//
//   auto model = nn::make_decoder(options, at::kMeta);
//   auto engine = fully_shard(*model, shard_options, communicator, nullptr, {&source, at::kCPU});
//
// No rank ever holds the whole model: the engine asks for its own part of each parameter in turn and keeps it
// in its shards. What a source needs for one parameter exists once at a time.

#include <ATen/core/Tensor.h>

#include "shard/named_parameter.h"
#include "shard/unit_layout.h"

namespace fsdp::shard {

class ParameterSource {
 public:
  virtual ~ParameterSource() = default;

  /// Fills `out`, [range.numel()] fp32, contiguous, in host memory, with columns
  /// [begin, end) of the parameter seen as [rows, numel / rows]. parameter.tensor lies on the meta device and
  /// has the parameter's shape. Asked on every rank for every parameter in the same order, with an empty
  /// range where the rank keeps nothing of it, so that it may be collective; fully_shard() is then, too.
  virtual void read(const NamedParameter& parameter, const util::ColumnRange& range,
                    const at::Tensor& out) = 0;
};

/// What fully_shard() does with parameters on the meta device; others keep their values.
struct Materialize {
  ParameterSource* source = nullptr;  ///< used within fully_shard() only; null: none may be there
  at::Device device = at::kCPU;       ///< where the parameters are gathered and used
};

}  // namespace fsdp::shard
