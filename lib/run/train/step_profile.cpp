#include "run/train/step_profile.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <set>
#include <utility>

#include "base/util/error.h"
#include "base/util/log.h"
#include "run/train/device.h"

namespace fsdp::train {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

}  // namespace

StepProfile::StepProfile(std::filesystem::path folder, int rank, std::vector<int64_t> steps,
                         c10::Device device)
    : folder_(std::move(folder)), rank_(rank), steps_(std::move(steps)), device_(device) {
  // Otherwise the profiler reports on stderr that it finds no GPU.
  if (!steps_.empty()) ::setenv("KINETO_LOG_LEVEL", "5", /*overwrite=*/0);
}

StepProfile::~StepProfile() {
  if (step_ > 0) profiler::disableProfiler();  // the step ended with an exception
}

void StepProfile::begin_step(int64_t step) {
  if (std::find(steps_.begin(), steps_.end(), step) == steps_.end()) return;
  const ProfilerConfig config(ProfilerState::KINETO, /*report_input_shapes=*/true);
  std::set<ActivityType> activities = {ActivityType::CPU};
  if (device_.is_cuda()) activities.insert(ActivityType::CUDA);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  step_ = step;
}

void StepProfile::end_step() {
  if (step_ == 0) return;
  const std::string path =
      (folder_ / concat("profile.rank", rank_, ".step", std::exchange(step_, 0), ".json")).string();
  try {
    profiler::disableProfiler()->save(path);
  } catch (const std::exception& error) {
    util::log_warning(concat("cannot write ", path, ": ", error.what()));
    return;
  }
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    util::log_warning(concat("cannot write ", path, "; is there space on that disk?"));
  }
}

NvtxRanges::NvtxRanges(bool wanted, c10::Device device) {
  if (!wanted) return;
  require_gpu("logging.nvtx", device);
  profiler::enableProfiler(ProfilerConfig(ProfilerState::NVTX), {ActivityType::CPU});
  on_ = true;
}

NvtxRanges::~NvtxRanges() {
  if (on_) profiler::disableProfiler();
}

}  // namespace fsdp::train
