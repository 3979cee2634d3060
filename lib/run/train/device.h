#pragma once

// The device of a rank: its choice, the precision of float32 products, and the best rate of matrix products,
// which is the peak of MFU.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <functional>
#include <string>

#include "comm/api/communicator.h"
#include "model/kernels/matmul.h"
#include "setup/config/config.h"

namespace fsdp::train {

/// Returns the device of training.device: "cpu", "cuda" (the GPU whose number is the rank's number on its
/// host, modulo the number of GPUs) or "auto", which is "cuda" where there is a GPU and this program was
/// built for GPUs. The device becomes the calling thread's current one. Throws Error(kUsage) for "cuda" where
/// no GPU can be used.
c10::Device training_device(util::Named<config::DeviceChoice> choice, int local_rank);

/// Throws Error(kUsage) if `device` is no GPU. `key`: the key of the config that needs one.
void require_gpu(const std::string& key, const c10::Device& device);

/// Sets training.float32_matmul_precision for the whole process, like torch.set_float32_matmul_precision().
/// With "high", GPUs may round the factors of float32 products to TF32, and a CPU's matrix unit may split
/// each into two bf16 numbers (16 bits in all); with "highest" neither. Other products on the CPU are not
/// affected.
void set_float32_matmul_precision(util::Named<config::Float32Precision> precision);
/// Whether products on GPUs may use TF32.
bool float32_products_use_tf32();
/// Whether products on the CPU by `matmul` use 16 of 24 bits.
bool float32_products_are_shorter(kernels::Matmul matmul);

/// Sets training.deterministic for the whole process, like torch.use_deterministic_algorithms(): libtorch
/// chooses kernels whose results are the same every time, and throws if an operation has none. Unlike
/// PyTorch, does not fill new memory, which would cost a kernel for each tensor.
void set_deterministic(bool deterministic);
/// Throws Error(kUsage) if `error` is about an operation without such a kernel.
void explain_nondeterminism(const c10::Error& error);

/// Sets precision and determinism, and returns the device. Warns, if asked to (on rank 0), about a precision
/// that has no effect on this device.
c10::Device prepare_device(const config::TrainingOptions& training, int local_rank, bool warns);

struct PeakRate {
  double flops_per_second = 0;      ///< rate per rank
  const char* source = "measured";  ///< "measured", "data sheet" or "logging.peak_tflops"
  double share_of_threads = 1;      ///< share_of_threads() of the first measurement, for later ones

  bool is_given() const;  ///< whether logging.peak_tflops gives the rate
};

/// Returns logging.peak_tflops if it is given; otherwise the rate of the GPU's data sheet for dense products
/// in param_dtype (in TF32 if float32 products use it); otherwise, on the CPU and on GPUs without a data
/// sheet, the largest of the rates that the ranks measure. Collective.
PeakRate find_peak_rate(const config::Config& config, comm::Communicator& communicator);

/// Returns the rate of a device by its name in CUDA; 0 if there is no data sheet, or none with a rate for
/// that type.
double data_sheet_rate(const std::string& device_name, util::Named<util::FloatType> dtype);

/// Returns MFU or HFU: `flops_per_second` of a rank as a share of the peak. A rate above the peak raises the
/// peak to that rate, or to the rate that `measure` finds (this rank with all its threads; 0: not measured)
/// if that is higher, unless the user gave the peak.
double utilisation(PeakRate& peak, double flops_per_second, const std::function<double()>& measure);

/// Returns the matrix [n, n] whose products measured_matmul_rate() times. Its numbers differ, because with
/// equal numbers matrix units are a fifth faster, and GPUs a tenth: they draw less power.
at::Tensor numbers_to_multiply(int64_t n, at::ScalarType dtype, at::Device device);

/// Measures the rate in FLOP/s of products y = x W^T in `dtype` by the library that the model uses: the best
/// of several products, in about 0.03 s. On the CPU, the rate is by the processor time of one thread, so that
/// a busy machine does not lower it, times the threads of this process. On another device, it is the rate of
/// [8192, 8192] matrices by wall time. `clock`: another clock, in seconds.
double measured_matmul_rate(util::Named<util::FloatType> dtype, kernels::Matmul matmul,
                            at::Device device = at::kCPU, double (*clock)() = nullptr);

/// Returns the share of its threads that each rank of a host can run at once: 1 unless the ranks have more
/// `threads` together than the host has `cores`.
double share_of_threads(int64_t threads, int64_t cores);

}  // namespace fsdp::train
