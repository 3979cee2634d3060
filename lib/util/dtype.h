#pragma once

// Names of the floating-point and integer types in configs, checkpoints and messages.

#include <c10/core/ScalarType.h>

#include <string>
#include <string_view>

namespace fsdp::util {

/// "float32", "bfloat16", "float16", "float64", "int64", ...; an assertion for types that the toolkit never
/// stores.
std::string dtype_name(c10::ScalarType dtype);

/// The inverse; throws Error(kUsage) that lists the known names.
c10::ScalarType dtype_from_name(std::string_view name);

}  // namespace fsdp::util
