#include "base/tensor/storage.h"

#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "base/tensor/autograd_node.h"
#include "base/util/error.h"

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

at::Storage storage_that_throws(at::Device device, int64_t nbytes, std::string message) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), nbytes,
                                                       c10::DataPtr(nullptr, device), /*allocator=*/nullptr,
                                                       /*resizable=*/false);
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(std::move(message));
  return at::Storage(std::move(storage));
}

void set_storage(const at::Tensor& tensor, at::Storage storage) {
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  impl->set_allow_tensor_metadata_change(true);
  impl->set_storage_keep_dtype(std::move(storage));
}

at::Tensor tensor_that_throws(at::IntArrayRef shape, const at::TensorOptions& options, std::string message) {
  at::Tensor tensor = at::empty({0}, options);
  const auto nbytes = c10::multiply_integers(shape) * static_cast<int64_t>(tensor.element_size());
  set_storage(tensor, storage_that_throws(tensor.device(), nbytes, std::move(message)));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  return tensor;
}

void point_at(const at::Tensor& tensor, const at::Tensor& data) {
  if (tensor.is_meta() == data.is_meta()) {
    at::Tensor(tensor).set_data(data);
    return;
  }
  FSDP_CHECK((tensor.is_floating_point() && data.is_floating_point()) ||
                 (tensor.scalar_type() == at::kByte && data.scalar_type() == at::kByte),
             tensor.scalar_type(), " to ", data.scalar_type());
  // The gradient accumulator records the former device; set_data() drops it too.
  if (torch::autograd::impl::try_get_grad_accumulator(tensor)) {
    torch::autograd::impl::set_grad_accumulator(tensor, WeakNodePtr(NodePtr()));
  }
  tensor.unsafeGetTensorImpl()->shallow_copy_from(data.getIntrusivePtr());
}

}  // namespace fsdp::util
