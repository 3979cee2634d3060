#pragma once

// Names and sizes of the floating-point and integer types in configs, checkpoints and messages. Needs of
// libtorch a header without code only, so that programs which do not load it speak of types too.

#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp::util {

/// "float32", "bfloat16", "float16", "float64", "int64", ...; an assertion for types that the toolkit never
/// stores.
std::string dtype_name(c10::ScalarType dtype);

/// The inverse; throws Error(kUsage) that lists the known names.
c10::ScalarType dtype_from_name(std::string_view name);

/// Bytes of one element; an assertion as above.
int64_t element_size(c10::ScalarType dtype);

}  // namespace fsdp::util
