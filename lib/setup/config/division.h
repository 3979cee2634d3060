#pragma once

#include <cstdint>
#include <string>

#include "base/util/error.h"

namespace fsdp::config {

/// Returns "256 = 36 * 7 + 4".
inline std::string division(int64_t value, int64_t divisor) {
  return concat(value, " = ", value / divisor, " * ", divisor, " + ", value % divisor);
}

}  // namespace fsdp::config
