#pragma once

// Training under libtorch's profiler. Chosen steps are written as files for chrome://tracing and Perfetto,
// with every operation of the training thread, its time, the shapes of its inputs, and the GPU's activity; or
// all steps are NVTX ranges. Among the operations are unit/gather, unit/forward and unit/reduce with the
// unit's name.

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <vector>

namespace fsdp::train {

/// One object per rank; profiles the calling thread. Not thread-safe.
class StepProfile {
 public:
  /// Writes folder/profile.rank<R>.step<N>.json for each of `steps`.
  StepProfile(std::filesystem::path folder, int rank, std::vector<int64_t> steps,
              c10::Device device = c10::kCPU);
  ~StepProfile();
  StepProfile(const StepProfile&) = delete;
  StepProfile& operator=(const StepProfile&) = delete;

  void begin_step(int64_t step);
  /// Writes the file. Only warns if that fails: the run goes on.
  void end_step();

 private:
  std::filesystem::path folder_;
  int rank_;
  std::vector<int64_t> steps_;
  c10::Device device_;
  int64_t step_ = 0;  ///< step that is being profiled; 0: none
};

/// During its lifetime, if `wanted`, operations and units of the calling thread and of the backward passes
/// that it starts are NVTX ranges. Throws Error(kUsage) where `device` is no GPU.
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
