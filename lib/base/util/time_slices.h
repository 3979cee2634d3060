#pragma once

// How long the scheduler lets a thread of this process run while others wait.

namespace fsdp::util {

/// Gives the calling thread slices of 0.1 ms while it exists, and threads that the calling thread starts
/// meanwhile for as long as they run. A thread with a short slice has the same share of a core, but begins at
/// once when it has waited: without that, a thread that passes on data waits up to 3 ms behind one that
/// computes, for each message, and the links are idle so long. No effect before Linux 6.12, which has no
/// slices of threads, nor for threads of real-time policies.
class ShortTimeSlices {
 public:
  ShortTimeSlices();
  ~ShortTimeSlices();
  ShortTimeSlices(const ShortTimeSlices&) = delete;
  ShortTimeSlices& operator=(const ShortTimeSlices&) = delete;
};

/// The slice of the calling thread in nanoseconds; 0 where the system has none.
unsigned long time_slice();

}  // namespace fsdp::util
