#pragma once

// Whether parameters can be read: at rest, those of sharded units cannot.

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <string>

#include "base/tensor/storage.h"

namespace fsdp::testing {

inline bool is_readable(const at::Tensor& tensor) {
  try {
    tensor.storage().data();
  } catch (const c10::Error&) {
    return false;
  }
  return !util::storage_is_free(tensor);
}

/// The message of the error that a call ends with; empty if it ends without one.
template <typename Call>
std::string torch_error_of(const Call& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return {};
}

}  // namespace fsdp::testing
