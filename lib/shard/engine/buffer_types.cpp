#include "shard/engine/buffer_types.h"

#include <ATen/core/grad_mode.h>

#include <map>

#include "base/dtype/dtype.h"
#include "model/nn/buffers.h"

namespace fsdp::shard {
namespace {

class BufferCast {
 public:
  BufferCast(const std::vector<UnitPlan>& units, const MixedPrecisionOptions& options)
      : given_(float_type_of(options.buffer_dtype)) {
    for (const UnitPlan& unit : units) {
      const at::ScalarType type = unit.options.storage.param_dtype;
      if (type == at::kByte) continue;  // quantized
      unit_types_.emplace(unit.module, type);
      for (const NamedParameter& parameter : unit.parameters) {
        parameter_types_.emplace(parameter.tensor.unsafeGetTensorImpl(), type);
      }
    }
  }

  /// `around`: the type of the parameters of the module around this one.
  void run(torch::nn::Module& module, at::ScalarType around) const {
    at::ScalarType type = around;
    if (auto* hookable = dynamic_cast<nn::Hookable*>(&module)) {
      if (const auto unit = unit_types_.find(&hookable->hooked()); unit != unit_types_.end())
        type = unit->second;
    }
    for (const at::Tensor& parameter : module.parameters(/*recurse=*/false)) {
      const auto found = parameter_types_.find(parameter.unsafeGetTensorImpl());
      if (found != parameter_types_.end()) type = found->second;
    }
    const bool is_computed = dynamic_cast<const nn::ComputedBuffers*>(&module) != nullptr;
    if (given_ || !is_computed) cast(module, given_ ? util::scalar_type(*given_) : type);
    for (const auto& child : module.children()) run(*child, type);
  }

 private:
  static void cast(torch::nn::Module& module, at::ScalarType type) {
    for (at::Tensor& buffer : module.buffers(/*recurse=*/false)) {
      if (buffer.is_floating_point() && buffer.scalar_type() != type) buffer.set_data(buffer.to(type));
    }
  }

  std::optional<util::FloatType> given_;
  std::map<const nn::Hookable*, at::ScalarType> unit_types_;
  std::map<const void*, at::ScalarType> parameter_types_;  ///< keyed by TensorImpl
};

}  // namespace

void cast_buffers(torch::nn::Module& root, const std::vector<UnitPlan>& units,
                  const MixedPrecisionOptions& options) {
  at::NoGradGuard no_grad;
  BufferCast(units, options).run(root, util::scalar_type(options.param_dtype));
}

}  // namespace fsdp::shard
