#pragma once

// A chosen step through libtorch's profiler, as a file for chrome://tracing and Perfetto: every operation of
// the training thread with its time and the shapes of its inputs.

#include <cstdint>
#include <filesystem>
#include <vector>

namespace fsdp::train {

/// One object a rank; what it profiles is what the calling thread does. Not thread-safe.
class StepProfile {
 public:
  /// Writes folder/profile.rank<R>.step<N>.json for each of `steps`.
  StepProfile(std::filesystem::path folder, int rank, std::vector<int64_t> steps);
  ~StepProfile();
  StepProfile(const StepProfile&) = delete;
  StepProfile& operator=(const StepProfile&) = delete;

  void begin_step(int64_t step);
  /// A file that cannot be written is a warning: the run goes on.
  void end_step();

 private:
  std::filesystem::path folder_;
  int rank_;
  std::vector<int64_t> steps_;
  int64_t step_ = 0;  ///< under the profiler now; 0: none
};

}  // namespace fsdp::train
