#pragma once

// InnerShards: the weights of engines that have handed over their units, as the source of the outer engine's
// parameters. One unit at a time is gathered, and its shard is freed once all of its parameters have been
// read.

#include <map>
#include <memory>
#include <vector>

#include "shard/engine/engine.h"
#include "shard/engine/parameter_source.h"

namespace fsdp::shard {

class InnerShards final : public ParameterSource {
 public:
  /// `others`: the source of parameters on the meta device that no unit has.
  explicit InnerShards(const Materialize& others) : others_(others) {}

  /// Adds units, whose parameters must be on the meta device.
  void add(std::vector<std::unique_ptr<Unit>> units, at::Device device);

  /// Returns the source for the outer engine, which replaces `others`.
  Materialize materialize();

  /// Collective.
  void read(const NamedParameter& parameter, const std::vector<util::Rectangle>& parts,
            const at::Tensor& out) override;
  void read_buffer(const NamedTensor& buffer) override;

 private:
  struct InnerPlace {
    std::shared_ptr<Unit> unit;
    size_t index = 0;  ///< index into the unit's parameters
  };

  Materialize others_;
  std::map<const void*, InnerPlace> places_;  ///< keyed by the parameter's TensorImpl
  const Unit* gathered_unit_ = nullptr;
  at::Tensor gathered_;
};

}  // namespace fsdp::shard
