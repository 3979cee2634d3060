#include "run/train/device.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sin.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <thread>

#include "base/device/cuda.h"
#include "base/dtype/dtype.h"
#include "base/tensor/parallel.h"
#include "base/util/error.h"
#include "base/util/gpu_data_sheets.h"
#include "base/util/log.h"
#include "base/util/system.h"
#include "comm/api/launch_environment.h"
#include "model/kernels/tile_product.h"

namespace fsdp::train {

c10::Device training_device(util::Named<config::DeviceChoice> choice, int local_rank) {
  using config::DeviceChoice;
  const bool none = util::cuda_status().devices == 0;
  if (choice == DeviceChoice::kCpu || (choice == DeviceChoice::kAuto && none)) return c10::kCPU;
  util::require_cuda("training.device");
  const int index = local_rank % util::cuda_status().devices;
  util::set_cuda_device(index);
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
}

void require_gpu(const std::string& key, const c10::Device& device) {
  if (device.is_cuda()) return;
  fail(ErrorKind::kUsage, key, " requires a GPU, but the run is on ", device.str(),
       "; set training.device to cuda, or leave it out");
}

void set_float32_matmul_precision(util::Named<config::Float32Precision> precision) {
  const bool high = precision == config::Float32Precision::kHigh;
  // Not setFloat32MatmulPrecision(), with which oneDNN would round on some CPUs.
  at::globalContext().setAllowTF32CuBLAS(high);
  kernels::set_float32_parts(high ? 2 : 3);
}

bool float32_products_are_shorter(kernels::Matmul matmul) {
  return matmul == kernels::Matmul::kAmx && kernels::float32_parts() < 3;
}

bool float32_products_use_tf32() { return at::globalContext().allowTF32CuBLAS(); }

void set_deterministic(bool deterministic) {
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(deterministic, /*warn_only=*/false);
  context.setDeterministicFillUninitializedMemory(false);
}

void explain_nondeterminism(const c10::Error& error) {
  const std::string what = error.what_without_backtrace();
  const size_t end = what.find(" does not have a deterministic implementation");
  if (end == std::string::npos) return;
  fail(ErrorKind::kUsage,
       "training.deterministic requires operations with a kernel whose results are the same in every run, "
       "but libtorch's ",
       what.substr(0, end), " has none; replace the operation, or leave the key out");
}

/// libtorch uses a thread for each core, although a control group may limit the process to fewer.
void keep_to_cpu_quota() {
  if (std::getenv("OMP_NUM_THREADS") != nullptr || std::getenv("MKL_NUM_THREADS") != nullptr) return;
  const auto quota = util::cpu_quota();
  if (quota && *quota < at::get_num_threads()) at::set_num_threads(*quota);
}

c10::Device prepare_device(const config::TrainingOptions& training, int local_rank, bool warns) {
  keep_to_cpu_quota();
  set_float32_matmul_precision(training.float32_matmul_precision);
  set_deterministic(training.deterministic);
  const c10::Device device = training_device(training.device, local_rank);
  const bool has_effect = training.float32_matmul_precision == config::Float32Precision::kHighest ||
                          !device.is_cpu() ||
                          float32_products_are_shorter(kernels::matmul_by_name(training.matmul.name()));
  if (!has_effect && warns) {
    util::log_warning(
        concat("training.float32_matmul_precision = \"", training.float32_matmul_precision,
               "\" has no effect on a CPU without a matrix unit (training.matmul = \"amx\"), which "
               "multiplies in full precision; leave it out"));
  }
  return device;
}

namespace {

constexpr const char *kMeasured = "measured", *kDataSheet = "data sheet", *kGiven = "logging.peak_tflops";

/// Returns the processor time of the calling thread, without its waits for a processor.
double processor_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Returns the best rate of several products by `clock`.
double best_rate(const at::Tensor& x, kernels::Matmul matmul, double least_seconds, double (*clock)()) {
  const at::NoGradGuard no_grad;
  const double flops = 2.0 * std::pow(static_cast<double>(x.size(0)), 3);
  const at::Tensor weight = x.clone();
  const auto multiply = [&] {
    const at::Tensor y = kernels::linear(x, weight, matmul);
    if (!x.is_cpu()) y.view({-1})[0].item<double>();  // waits for the device
  };
  multiply();  // the first product prepares the library's kernels
  double best = 0, spent = 0;
  while (spent < least_seconds) {
    const double begin = clock();
    multiply();
    const double seconds = clock() - begin;
    best = std::max(best, flops / seconds);
    spent += seconds;
  }
  return best;
}

/// Returns share_of_threads() of the ranks on this host.
double share_of_processors(comm::Communicator& communicator) {
  const comm::HostIdentity host = comm::HostIdentity::read();
  const std::string key = concat(host.boot_id, ' ', host.pid_namespace, ' ');
  const int threads = at::get_num_threads();
  int64_t of_host = 0;
  for (const std::string& text :
       comm::all_gather_text(communicator, concat(key, threads), {.unit = "threads"})) {
    if (text.starts_with(key)) of_host += std::stoll(text.substr(key.size()));
  }
  return share_of_threads(of_host, std::thread::hardware_concurrency());
}

double largest_over_ranks(double value, comm::Communicator& communicator) {
  const at::Tensor largest = at::full({1}, value, at::kDouble);
  communicator.all_reduce(largest, comm::ReduceOp::kMax, {.unit = "peak rate"})->synchronize();
  return largest.item<double>();
}

}  // namespace

bool PeakRate::is_given() const { return std::strcmp(source, kGiven) == 0; }

PeakRate find_peak_rate(const config::Config& config, comm::Communicator& communicator) {
  if (config.logging.peak_tflops > 0) return {config.logging.peak_tflops * 1e12, kGiven};
  const at::Device device = communicator.device();
  const auto dtype = config.mixed_precision.param_dtype;
  // Ranks on different GPUs must agree: on the best of their rates, and on whether all have a data sheet.
  double known = 0;
  if (device.is_cuda()) known = data_sheet_rate(util::cuda_device(device.index()).name, dtype);
  const double unknown = largest_over_ranks(known > 0 ? 0 : 1, communicator);
  if (unknown == 0) return {largest_over_ranks(known, communicator), kDataSheet};
  const double share = device.is_cpu() ? share_of_processors(communicator) : 1;
  const double rate =
      measured_matmul_rate(dtype, kernels::matmul_by_name(config.training.matmul.name()), device);
  return {largest_over_ranks(std::max(rate * share, known), communicator), kMeasured, share};
}

double data_sheet_rate(const std::string& device_name, util::Named<util::FloatType> dtype) {
  const util::GpuDataSheet* sheet = util::gpu_data_sheet(device_name);
  if (sheet == nullptr) return 0;
  const bool tf32 =
      dtype == util::FloatType::kFloat32 && float32_products_use_tf32() && sheet->tf32_tflops > 0;
  return 1e12 * sheet->dense_tflops(tf32 ? "tf32" : dtype.name());
}

double utilisation(PeakRate& peak, double flops_per_second, const std::function<double()>& measure) {
  if (flops_per_second > peak.flops_per_second && !peak.is_given()) {
    peak.flops_per_second = std::max(flops_per_second, measure() * peak.share_of_threads);
    peak.source = kMeasured;
  }
  return flops_per_second / peak.flops_per_second;
}

at::Tensor numbers_to_multiply(int64_t n, at::ScalarType dtype, at::Device device) {
  const at::Tensor numbers = at::arange(n * n, at::TensorOptions(at::kFloat).device(device)).sin_();
  return numbers.view({n, n}).to(dtype);
}

double measured_matmul_rate(util::Named<util::FloatType> dtype, kernels::Matmul matmul, at::Device device,
                            double (*clock)()) {
  const auto numbers = [&](int64_t n) { return numbers_to_multiply(n, util::scalar_type(dtype), device); };
  if (!device.is_cpu()) return best_rate(numbers(8192), matmul, 0.08, clock ? clock : wall_seconds);
  double rate = 0;
  util::on_one_thread(
      [&] { rate = best_rate(numbers(512), matmul, 0.01, clock ? clock : processor_seconds); });
  return rate * at::get_num_threads();
}

double share_of_threads(int64_t threads, int64_t cores) {
  return cores <= 0 || threads <= cores ? 1 : static_cast<double>(cores) / static_cast<double>(threads);
}

}  // namespace fsdp::train
