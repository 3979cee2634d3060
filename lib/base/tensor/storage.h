#pragma once

// Freeing, restoring and replacing the memory of a tensor, which stays the same object. Its views, including
// those saved by autograd, become valid again with the restored memory.

#include <ATen/core/Tensor.h>

#include <string>

namespace fsdp::util {

/// Frees the memory of the tensor's storage. Reading any view of the storage before restore_storage() is
/// undefined. No effect if the memory is already free.
void free_storage(const at::Tensor& tensor);

/// Allocates the storage's memory again, with undefined contents. No effect if the memory is not free.
void restore_storage(const at::Tensor& tensor, int64_t nbytes);

/// Restores the storage with the caller's memory of at least `nbytes`, which the DataPtr's deleter frees with
/// the storage. Requires: the storage is free.
void restore_storage(const at::Tensor& tensor, c10::DataPtr memory, int64_t nbytes);

/// Returns a 1-D tensor without memory, for free_storage() and later restore_storage(). Views of it can be
/// created until free_storage(); a free tensor would refuse them as outside of its storage.
at::Tensor empty_without_memory(int64_t numel, const at::TensorOptions& options);

bool storage_is_free(const at::Tensor& tensor);

/// Returns a storage of `nbytes` without memory, of which views can be made. Reading or writing its data
/// throws a c10::Error with `message`.
at::Storage storage_that_throws(at::Device device, int64_t nbytes, std::string message);

/// Returns a contiguous tensor of such a storage.
at::Tensor tensor_that_throws(at::IntArrayRef shape, const at::TensorOptions& options, std::string message);

/// Replaces the tensor's storage. Sizes, strides and offset stay; earlier views keep the former storage.
void set_storage(const at::Tensor& tensor, at::Storage storage);

/// Does tensor.set_data(data), also to and from the meta device, which set_data() refuses. Modules that hold
/// the tensor see the new data.
void point_at(const at::Tensor& tensor, const at::Tensor& data);

}  // namespace fsdp::util
