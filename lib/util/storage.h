#pragma once

// Give a tensor's memory back, restore it and point the tensor at other memory without changing its identity:
// views of it, autograd's saved tensors among them, become valid again when the memory returns (with new
// contents).

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

/// A 1-D tensor whose memory is still to come, by restore_storage() after free_storage(). Views of it can be
/// made in between, other than of one that is free: those lie outside of its storage.
at::Tensor empty_without_memory(int64_t numel, const at::TensorOptions& options);

bool storage_is_free(const at::Tensor& tensor);

/// tensor.set_data(data), also for a tensor on the meta device, which set_data() refuses to move to another.
/// It keeps its identity, so modules that hold it see the data.
void point_at(const at::Tensor& tensor, const at::Tensor& data);

}  // namespace fsdp::util
