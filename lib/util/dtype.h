#pragma once

// Names and sizes of data types in configs, checkpoints and messages. Uses only a header of libtorch that
// needs no library, for programs that do not load libtorch.

#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp::util {

/// "float32", "bfloat16", "float16", "float64", "int64", ...; asserts that the toolkit stores the type.
std::string dtype_name(c10::ScalarType dtype);

/// Throws Error(kUsage) with the known names.
c10::ScalarType dtype_from_name(std::string_view name);

/// Bytes of an element; asserts as above.
int64_t element_size(c10::ScalarType dtype);

}  // namespace fsdp::util
