#include "util/storage.h"

#include <c10/core/Allocator.h>

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

}  // namespace fsdp::util
