#include "util/dtype.h"

#include <utility>

#include "util/error.h"

namespace fsdp::util {
namespace {
constexpr std::pair<std::string_view, c10::ScalarType> kNames[] = {
    {"float32", c10::ScalarType::Float}, {"bfloat16", c10::ScalarType::BFloat16},
    {"float16", c10::ScalarType::Half},  {"float64", c10::ScalarType::Double},
    {"int64", c10::ScalarType::Long},    {"int32", c10::ScalarType::Int},
    {"int16", c10::ScalarType::Short},   {"uint8", c10::ScalarType::Byte},
    {"int8", c10::ScalarType::Char},     {"bool", c10::ScalarType::Bool},
};
}  // namespace

std::string dtype_name(c10::ScalarType dtype) {
  for (const auto& [name, type] : kNames) {
    if (type == dtype) return std::string(name);
  }
  FSDP_CHECK(false, "no name for the data type ", c10::toString(dtype));
}

c10::ScalarType dtype_from_name(std::string_view name) {
  std::string known;
  for (const auto& [candidate, type] : kNames) {
    if (candidate == name) return type;
    known.append(known.empty() ? "" : ", ").append(candidate);
  }
  fail(ErrorKind::kUsage, "unknown data type \"", name, "\"; expected one of ", known);
}

}  // namespace fsdp::util
