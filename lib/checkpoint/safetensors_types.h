#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <string_view>
#include <utility>

namespace fsdp::checkpoint {

/// The element types of safetensors that the toolkit stores, under the format's names.
inline constexpr std::array<std::pair<std::string_view, c10::ScalarType>, 10> kSafetensorsTypes{{
    {"F32", c10::ScalarType::Float},
    {"F16", c10::ScalarType::Half},
    {"BF16", c10::ScalarType::BFloat16},
    {"F64", c10::ScalarType::Double},
    {"I64", c10::ScalarType::Long},
    {"I32", c10::ScalarType::Int},
    {"I16", c10::ScalarType::Short},
    {"I8", c10::ScalarType::Char},
    {"U8", c10::ScalarType::Byte},
    {"BOOL", c10::ScalarType::Bool},
}};

}  // namespace fsdp::checkpoint
