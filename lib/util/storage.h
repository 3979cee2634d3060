#pragma once

// Give a tensor's memory back and restore it without changing the tensor's identity: views of it, autograd's
// saved tensors among them, become valid again when the memory returns (with new contents).

#include <ATen/core/Tensor.h>

namespace fsdp::util {

/// Gives the memory of the tensor's storage back. Reading any view of it before restore_storage() is
/// undefined. No effect when it is freed already.
void free_storage(const at::Tensor& tensor);

/// Allocates memory for the whole storage again; the contents are undefined. No effect when it is there.
void restore_storage(const at::Tensor& tensor, int64_t nbytes);

/// The same with memory of the caller's: at least `nbytes`, given back through the DataPtr's deleter when the
/// storage is freed. The storage must be free.
void restore_storage(const at::Tensor& tensor, c10::DataPtr memory, int64_t nbytes);

bool storage_is_free(const at::Tensor& tensor);

}  // namespace fsdp::util
