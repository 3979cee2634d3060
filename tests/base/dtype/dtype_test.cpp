#include "base/dtype/dtype.h"

#include <c10/core/ScalarType.h>
#include <gtest/gtest.h>

#include "base/util/error.h"

namespace fsdp::util {
namespace {

TEST(Dtype, HasTheNameAndTheSizeOfLibtorchs) {
  for (const char* name :
       {"float32", "bfloat16", "float16", "float64", "int64", "int32", "int16", "uint8", "int8", "bool"}) {
    const c10::ScalarType dtype = dtype_from_name(name);
    EXPECT_EQ(dtype_name(dtype), name);
    EXPECT_EQ(element_size(dtype), static_cast<int64_t>(c10::elementSize(dtype))) << name;
  }
}

TEST(Dtype, RefusesAnUnknownName) { EXPECT_THROW(dtype_from_name("float8"), Error); }

TEST(Dtype, HasNoSizeForWhatIsNeverStored) {
  EXPECT_THROW(element_size(c10::ScalarType::ComplexFloat), std::exception);
}

}  // namespace
}  // namespace fsdp::util
