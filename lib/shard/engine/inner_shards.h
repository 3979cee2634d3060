#pragma once

// InnerShards: the weights of engines that have handed over their units, as the source of the parameters of the engine
// around them. One unit at a time is gathered, and its shard is freed once all of its parameters have been read.

#include <map>
#include <memory>
#include <vector>

#include "shard/engine/engine.h"
#include "shard/engine/parameter_source.h"

namespace fsdp::shard {

class InnerShards final : public ParameterSource {
 public:
  /// `others`: where parameters on the meta device come from that no unit has.
  explicit InnerShards(const Materialize& others) : others_(others) {}

  /// The parameters of the units must lie on the meta device.
  void add(std::vector<std::unique_ptr<Unit>> units, at::Device device);

  /// Returns the source to shard with in place of `others`.
  Materialize materialize();

  /// Collective.
  void read(const NamedParameter& parameter, const std::vector<util::Rectangle>& parts,
            const at::Tensor& out) override;
  void read_buffer(const NamedTensor& buffer) override;

 private:
  struct InnerPlace {
    std::shared_ptr<Unit> unit;
    size_t index = 0;  ///< into the unit's parameters
  };

  Materialize others_;
  std::map<const void*, InnerPlace> places_;  ///< by the parameter's TensorImpl
  const Unit* gathered_unit_ = nullptr;
  at::Tensor gathered_;
};

}  // namespace fsdp::shard
