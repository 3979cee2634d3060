#include "base/dtype/dtype.h"

#include "base/util/error.h"

namespace fsdp::util {
namespace {

struct Type {
  std::string_view name;
  c10::ScalarType dtype;
  int64_t element_size;
};

constexpr Type kTypes[] = {
    {"float32", c10::ScalarType::Float, 4}, {"bfloat16", c10::ScalarType::BFloat16, 2},
    {"float16", c10::ScalarType::Half, 2},  {"float64", c10::ScalarType::Double, 8},
    {"int64", c10::ScalarType::Long, 8},    {"int32", c10::ScalarType::Int, 4},
    {"int16", c10::ScalarType::Short, 2},   {"uint8", c10::ScalarType::Byte, 1},
    {"int8", c10::ScalarType::Char, 1},     {"bool", c10::ScalarType::Bool, 1},
};

const Type& type_of(c10::ScalarType dtype) {
  for (const Type& type : kTypes) {
    if (type.dtype == dtype) return type;
  }
  FSDP_CHECK(false, "no name for the data type ", c10::toString(dtype));
}

}  // namespace

std::string dtype_name(c10::ScalarType dtype) { return std::string(type_of(dtype).name); }

c10::ScalarType scalar_type(Named<FloatType> type) { return dtype_from_name(type.name()); }

int64_t element_size(c10::ScalarType dtype) { return type_of(dtype).element_size; }

c10::ScalarType dtype_from_name(std::string_view name) {
  std::string known;
  for (const Type& candidate : kTypes) {
    if (candidate.name == name) return candidate.dtype;
    known.append(known.empty() ? "" : ", ").append(candidate.name);
  }
  fail(ErrorKind::kUsage, "unknown data type \"", name, "\"; expected one of ", known);
}

}  // namespace fsdp::util
