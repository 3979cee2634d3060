#pragma once

// Kernels on meta tensors, which have shapes but no memory. Every function of this component accepts them,
// allocates the tensors that it would allocate on the device that they represent, and computes nothing. A
// pass of the model on meta tensors therefore reveals the memory and compute of a step
// (tools/plan/recorded_pass.h).
//
// libtorch has meta kernels of most of its operations; meta_operators.cpp adds those that lib/model/nn needs
// and that libtorch has in Python only.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "model/kernels/meta_product.h"

namespace fsdp::kernels {

/// Is told what is copied between the device and host memory.
struct MetaCopies {
  /// Begins a copy, one after another in a stream of their own. Returns its number.
  std::function<int64_t(int64_t bytes)> begin = [](int64_t) { return 0; };
  /// Waits for the end of a copy.
  std::function<void(int64_t number)> wait = [](int64_t) {};
  /// Takes so many bytes of host memory or, if negative, gives them back.
  std::function<void(int64_t bytes)> keep = [](int64_t) {};
};

/// The device that a thread's meta tensors represent.
struct MetaDevice {
  c10::DeviceType type = c10::kCPU;  ///< kCPU or kCUDA
  int64_t threads = 1;               ///< threads of the CPU, each with its scratch memory
  /// Called for products that are computed here, not by a libtorch operation.
  std::function<void(const MetaProduct& product)> multiplies = [](const MetaProduct&) {};
  MetaCopies copies = {};
};

/// Sets the calling thread's meta_device() in a scope; outside, it is a CPU with one thread.
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

/// Returns the type of the tensor's device or, for a meta tensor, of the device that it represents.
inline c10::DeviceType served_by(const at::Tensor& x) {
  return x.is_meta() ? meta_device().type : x.device().type();
}
inline bool is_for_cpu(const at::Tensor& x) { return x.is_cpu() || served_by(x) == c10::kCPU; }
inline bool is_for_cuda(const at::Tensor& x) { return x.is_cuda() || served_by(x) == c10::kCUDA; }

/// Records a product [m, k] [k, n] of meta tensors.
inline void note_product(int64_t m, int64_t n, int64_t k, ProductKind kind = ProductKind::kPlain) {
  meta_device().multiplies({.m = m, .n = n, .k = k, .kind = kind});
}
/// Records one of the two passes over a block of causal attention (model/kernels/attention_block.h): two
/// products with all of its keys. As in all counts of attention, pairs of a whole sequence that causality
/// masks are counted; blocks of a sequence count twice the pairs that they compute. With a window, each query
/// attends to that many keys. q: [B, Tq, heads, head_dim]; k: [B, Tk, ..]
inline void note_attention_block(const at::Tensor& q, const at::Tensor& k, bool causal, int64_t window = 0) {
  const int64_t all = 2 * k.size(1) - (causal ? q.size(1) : 0),
                keys = window > 0 && window < all ? window : all;
  note_product(q.size(0) * q.size(1) * q.size(2), 2 * keys, q.size(3), ProductKind::kAttention);
}
/// Allocates and frees the memory that a kernel uses temporarily: one tensor for each of the device's
/// `threads`, but at most `most_threads`.
void touch_scratch(int64_t bytes_of_thread, int64_t most_threads);

/// Returns libtorch's causal scaled-dot-product attention of meta tensors, allocating what the CPU's kernels
/// keep: the result and the logarithms of the sums. q: [B, heads, T, head_dim]; k, v: [B, kv_heads, T,
/// head_dim] -> like q
at::Tensor meta_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

}  // namespace fsdp::kernels
