#pragma once

// Kernels on meta tensors, which have shapes and no memory: every function of this component takes them, takes
// the tensors that it would take on the device that they stand for, and computes nothing. So a model tells by a
// pass of its own what a step takes of memory and of compute (plan/recorded_pass.h).
//
// libtorch brings meta kernels of most of its operations; meta_operators.cpp adds those that lib/nn uses and
// that libtorch has in Python alone.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace fsdp::kernels {

/// What meta tensors stand for on a thread.
struct MetaDevice {
  c10::DeviceType type = c10::kCPU;  ///< kCPU or kCUDA
  int64_t threads = 1;               ///< of the CPU, each with scratch memory where kernels take such
  /// Hears of products that are computed here and not by an operation of libtorch. A multiplication and an
  /// addition are two FLOP.
  std::function<void(double flops, bool in_float8)> multiplies = [](double, bool) {};
};

/// Sets it for the calling thread, CPU with one thread where there is none.
class MetaDeviceGuard {
 public:
  explicit MetaDeviceGuard(const MetaDevice& device);
  ~MetaDeviceGuard();
  MetaDeviceGuard(const MetaDeviceGuard&) = delete;
  MetaDeviceGuard& operator=(const MetaDeviceGuard&) = delete;

 private:
  const MetaDevice* before_;
};
const MetaDevice& meta_device();

/// The kind of device whose kernels serve the tensor: its own or, of a meta tensor, the one it stands for.
inline c10::DeviceType served_by(const at::Tensor& x) {
  return x.is_meta() ? meta_device().type : x.device().type();
}
inline bool is_for_cpu(const at::Tensor& x) { return x.is_cpu() || served_by(x) == c10::kCPU; }
inline bool is_for_cuda(const at::Tensor& x) { return x.is_cuda() || served_by(x) == c10::kCUDA; }

/// To be called for a product [m, k] [k, n] of meta tensors that a kernel does not compute.
inline void note_product(int64_t m, int64_t n, int64_t k, bool in_float8 = false) {
  meta_device().multiplies(2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k),
                           in_float8);
}
/// Of a tensor that a kernel works in, and gives back before it returns: on the CPU one for each of `threads`.
void touch_scratch(int64_t bytes_of_thread, int64_t most_threads);

/// libtorch's scaled-dot-product attention of meta tensors, as its kernels of the CPU keep it: the result and
/// the logarithms of the sums. Causal. q: [B, heads, T, head_dim]; k, v: [B, kv_heads, T, head_dim] -> like q
at::Tensor meta_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

}  // namespace fsdp::kernels
