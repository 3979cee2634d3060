#pragma once

// What MFU is a share of: the rate of matrix products that a rank could reach at best.

#include <c10/core/Device.h>

#include <functional>
#include <string>

#include "comm/communicator.h"
#include "config/config.h"
#include "kernels/matmul.h"

namespace fsdp::train {

struct PeakRate {
  double flops_per_second = 0;      ///< of a rank
  const char* source = "measured";  ///< "measured", "data sheet" or "logging.peak_tflops"
  double share_of_threads = 1;      ///< part of its threads that a rank can run at once, for measuring again

  bool is_given() const;  ///< by logging.peak_tflops
};

/// logging.peak_tflops where it is given; else that of the GPU's data sheet, of dense products in param_dtype
/// (of float32 in TF32 where products use it); else, on the CPU and on a GPU that is in no table, measured by
/// every rank, and the largest of these rates counts. Collective.
PeakRate find_peak_rate(const config::Config& config, comm::Communicator& communicator);

/// Of a device by the name that CUDA gives it; 0 where there is no data sheet or no rate for that type in it.
double data_sheet_rate(const std::string& device_name, const std::string& dtype);

/// The share of the peak that `flops_per_second` of a rank are. Where they are more, the peak was too low: it
/// is measured again by `measure` (of this rank with all its threads; 0: not), and raised at least to them,
/// unless the user gave it.
double utilisation(PeakRate& peak, double flops_per_second, const std::function<double()>& measure);

/// The rate of products y = x W^T in `dtype` by the library that the model uses, in FLOP/s, takes some 0.03
/// s. On the CPU: FLOPs in a second of processor time of one thread, so that a busy machine does not make it
/// smaller, the best of several products, times the threads of this process. On another device: of [8192,
/// 8192] matrices by the clock on the wall.
double measured_matmul_rate(const std::string& dtype, kernels::Matmul matmul, at::Device device = at::kCPU);

/// The part of its threads that each rank of a host can run at once: 1 unless together they have more than
/// `cores`. `threads` are those of the ranks of that host.
double share_of_threads(int64_t threads, int64_t cores);

}  // namespace fsdp::train
