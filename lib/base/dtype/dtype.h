#pragma once

// Names and sizes of data types in configs, checkpoints and messages. Includes only a libtorch header that
// needs no library, for programs that do not load libtorch.

#include <torch/headeronly/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/util/enum_names.h"

namespace fsdp::util {

/// The types in which models compute and communicate.
enum class FloatType { kFloat32, kBFloat16, kFloat16 };
constexpr auto enum_names(FloatType) {
  return std::to_array<EnumName<FloatType>>({{FloatType::kFloat32, "float32"},
                                             {FloatType::kBFloat16, "bfloat16"},
                                             {FloatType::kFloat16, "float16"}});
}
c10::ScalarType scalar_type(Named<FloatType> type);

/// Returns "float32", "bfloat16", "float16", "int64" and so on. Asserts that the toolkit stores the type.
std::string dtype_name(c10::ScalarType dtype);

/// Parses dtype_name(). Throws Error(kUsage) with the known names for any other name.
c10::ScalarType dtype_from_name(std::string_view name);

/// Returns the bytes of an element. Asserts that the toolkit stores the type.
int64_t element_size(c10::ScalarType dtype);

}  // namespace fsdp::util
