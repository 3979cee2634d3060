#include "util/storage.h"

#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <torch/csrc/autograd/variable.h>

#include "util/error.h"

namespace fsdp::util {

bool storage_is_free(const at::Tensor& tensor) { return tensor.storage().nbytes() == 0; }

void free_storage(const at::Tensor& tensor) {
  if (storage_is_free(tensor)) return;
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, tensor.device()));
  storage->set_nbytes(0);
}

void restore_storage(const at::Tensor& tensor, int64_t nbytes) {
  if (!storage_is_free(tensor)) {
    FSDP_CHECK(static_cast<int64_t>(tensor.storage().nbytes()) == nbytes);
    return;
  }
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(storage->allocator()->allocate(static_cast<size_t>(nbytes)));
  storage->set_nbytes(nbytes);
}

void restore_storage(const at::Tensor& tensor, c10::DataPtr memory, int64_t nbytes) {
  FSDP_CHECK(storage_is_free(tensor));
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(std::move(memory));
  storage->set_nbytes(nbytes);
}

at::Tensor empty_without_memory(int64_t numel, const at::TensorOptions& options) {
  at::Tensor tensor = at::empty({0}, options);
  tensor.storage().unsafeGetStorageImpl()->set_nbytes(numel * static_cast<int64_t>(tensor.element_size()));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({numel});
  return tensor;
}

void point_at(const at::Tensor& tensor, const at::Tensor& data) {
  if (!tensor.is_meta() || data.is_meta()) {
    at::Tensor(tensor).set_data(data);
    return;
  }
  FSDP_CHECK((tensor.scalar_type() == at::kFloat && data.is_floating_point()) ||
                 (tensor.scalar_type() == at::kByte && data.scalar_type() == at::kByte),
             tensor.scalar_type(), " to ", data.scalar_type());
  // The gradient accumulator has the former device; set_data() drops it too.
  if (torch::autograd::impl::try_get_grad_accumulator(tensor)) {
    torch::autograd::impl::set_grad_accumulator(tensor, {});
  }
  tensor.unsafeGetTensorImpl()->shallow_copy_from(data.getIntrusivePtr());
}

}  // namespace fsdp::util
