#pragma once

// What libtorch's profiler tells of training: a chosen step as a file for chrome://tracing and Perfetto, with
// every operation of the training thread, its time and the shapes of its inputs, and what a GPU did
// meanwhile; or NVTX ranges of all steps. Among the operations are unit/gather, unit/forward, unit/reduce
// with the name of the unit.

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <vector>

namespace fsdp::train {

/// One object a rank; what it profiles is what the calling thread does. Not thread-safe.
class StepProfile {
 public:
  /// Writes folder/profile.rank<R>.step<N>.json for each of `steps`.
  StepProfile(std::filesystem::path folder, int rank, std::vector<int64_t> steps,
              c10::Device device = c10::kCPU);
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
  c10::Device device_;
  int64_t step_ = 0;  ///< under the profiler now; 0: none
};

/// While it lives, operations and units of the calling thread, and of the backward that it starts, are NVTX
/// ranges, if `wanted`. Throws Error(kUsage) where `device` is no GPU.
class NvtxRanges {
 public:
  NvtxRanges(bool wanted, c10::Device device);
  ~NvtxRanges();
  NvtxRanges(const NvtxRanges&) = delete;
  NvtxRanges& operator=(const NvtxRanges&) = delete;

 private:
  bool on_ = false;
};

}  // namespace fsdp::train
