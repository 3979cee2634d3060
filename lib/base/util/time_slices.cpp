#include "base/util/time_slices.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace fsdp::util {
namespace {

/// struct sched_attr of sched_setattr(2), in its first version. C libraries before glibc 2.41 lack it.
struct SchedulingAttributes {
  uint32_t size = sizeof(SchedulingAttributes), policy = 0;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime = 0, deadline = 0, period = 0;
};

/// The least that the kernel accepts.
constexpr uint64_t kShort = 100'000;

/// Attributes of the calling thread, if its policy has slices.
bool read_attributes(SchedulingAttributes& attributes) {
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0) return false;
  return attributes.policy == SCHED_OTHER || attributes.policy == SCHED_BATCH;
}

void set_slice(uint64_t nanoseconds) {
  SchedulingAttributes attributes;
  if (!read_attributes(attributes)) return;
  attributes.runtime = nanoseconds;
  (void)syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace

ShortTimeSlices::ShortTimeSlices() { set_slice(kShort); }

ShortTimeSlices::~ShortTimeSlices() { set_slice(0); }  // the system's own

unsigned long time_slice() {
  SchedulingAttributes attributes;
  return read_attributes(attributes) ? attributes.runtime : 0;
}

}  // namespace fsdp::util
