#pragma once

#include <fstream>
#include <stdexcept>

#include "base/util/system.h"

namespace fsdp::testing {

/// By how many bytes this process's resident memory rises at most while `body` runs. The system's mark of the
/// largest size, which earlier tests may have raised, is first set back to the present size.
template <typename Body>
int64_t rise_of_resident_memory(const Body& body) {
  if (!(std::ofstream("/proc/self/clear_refs") << 5 << std::flush)) {
    throw std::runtime_error("the system does not set back the mark of resident memory");
  }
  const int64_t before = util::resident_bytes();
  body();
  return util::peak_resident_bytes() - before;
}

}  // namespace fsdp::testing
