#include "shard/spmd/device_loader.h"

#include "base/util/error.h"
#include "shard/spmd/marks.h"

namespace fsdp::shard::detail {

const ShardingSpec& InputSharding::spec_of(size_t tensor, size_t tensors) const {
  if (specs_.size() != 1 && specs_.size() != tensors) {
    fail(ErrorKind::kUsage,
         "MpDeviceLoader: expected input_sharding to have one spec, or one for each of the ", tensors,
         " tensors of a batch; found ", specs_.size(), "; add or remove some");
  }
  return specs_[specs_.size() == 1 ? 0 : tensor];
}

std::vector<at::Tensor> InputSharding::cut(const nn::CallTensors& tensors) const {
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = *tensors[i];
    if (specs_.empty()) {
      parts.push_back(tensor);
      continue;
    }
    const auto& [mesh, spec, minibatch] = spec_of(i, tensors.size());
    // A part is a tensor of its own, so that the loader's keeps the mark that it has, or none.
    parts.push_back(minibatch ? tensor.view_as(tensor) : local_part("MpDeviceLoader", tensor, mesh, spec));
  }
  return parts;
}

void InputSharding::mark(const nn::CallTensors& parts) const {
  if (specs_.empty()) return;
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto& [mesh, spec, minibatch] = spec_of(i, parts.size());
    mark_local_shard(*parts[i], mesh, spec);
  }
}

}  // namespace fsdp::shard::detail
