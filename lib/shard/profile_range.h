#pragma once

// Names in the profiles of libtorch's profiler: what a unit does, for the time in which the calling thread
// does it. Costs next to nothing while no profiler runs.

#include <ATen/record_function.h>

#include <string>

namespace fsdp::shard {

class ProfileRange {
 public:
  /// "unit/gather layers.3"
  ProfileRange(const char* what, const std::string& unit) : range_(at::RecordScope::USER_SCOPE) {
    if (range_.isActive()) range_.before(what + (" " + unit));
  }

 private:
  at::RecordFunction range_;
};

}  // namespace fsdp::shard
