#include <ATen/core/op_registration/op_registration.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>

#include "model/kernels/meta.h"

namespace fsdp::kernels {
namespace {

thread_local const MetaDevice* device_of_thread = nullptr;

// ---- operations of libtorch, with the allocations of its kernels (the CPU's if both devices have one)

at::Tensor index_select(const at::Tensor& x, int64_t dim, const at::Tensor& index) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape[static_cast<size_t>(dim < 0 ? dim + x.dim() : dim)] = index.numel();
  return at::empty(shape, x.options());
}

at::Tensor embedding_dense_backward(const at::Tensor& gradient, const at::Tensor&, int64_t rows, int64_t,
                                    bool) {
  return at::empty({rows, gradient.size(-1)}, gradient.options());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> native_layer_norm(const at::Tensor& x, at::IntArrayRef shape,
                                                                 const std::optional<at::Tensor>&,
                                                                 const std::optional<at::Tensor>&, double) {
  std::vector<int64_t> statistics = x.sizes().vec();
  std::fill(statistics.end() - static_cast<int64_t>(shape.size()), statistics.end(), 1);
  return {at::empty_like(x), at::empty(statistics, x.options()), at::empty(statistics, x.options())};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> native_layer_norm_backward(
    const at::Tensor&, const at::Tensor& x, at::IntArrayRef shape, const at::Tensor&, const at::Tensor&,
    const std::optional<at::Tensor>&, const std::optional<at::Tensor>&, std::array<bool, 3> wanted) {
  const auto like = [&](bool is_wanted, at::IntArrayRef sizes) {
    return is_wanted ? at::empty(sizes, x.options()) : at::Tensor();
  };
  return {like(wanted[0], x.sizes()), like(wanted[1], shape), like(wanted[2], shape)};
}

/// Tile sizes of libtorch's attention on the CPU.
struct Tile {
  explicit Tile(int64_t tokens)
      : queries(std::min<int64_t>(tokens >= 768   ? 256
                                  : tokens >= 192 ? 64
                                                  : 32,
                                  tokens)),
        keys(std::min<int64_t>(512, tokens)) {}
  int64_t queries, keys;
};
constexpr int64_t kFloat = sizeof(float);

bool is_low(const at::Tensor& x) { return x.element_size() < kFloat; }

void note_attention(const at::Tensor& q, const at::Tensor& k, int times) {
  for (int i = 0; i < times; ++i) {
    note_product(q.size(0) * q.size(1) * q.size(2), 2 * k.size(2), q.size(3), ProductKind::kAttention);
  }
}

/// [B, heads, T, head_dim], stored as [B, T, heads, head_dim].
at::Tensor heads_like(const at::Tensor& x) {
  return at::empty({x.size(0), x.size(2), x.size(1), x.size(3)}, x.options()).transpose(1, 2);
}

std::tuple<at::Tensor, at::Tensor> attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor&,
                                             double, bool, const std::optional<at::Tensor>&,
                                             std::optional<double>) {
  note_attention(q, k, 1);
  const at::Tensor log_sums =
      at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(at::kFloat)).transpose(1, 2);
  at::Tensor y = heads_like(q);
  const Tile tile(q.size(2));
  int64_t scratch = kFloat * tile.queries * (tile.keys + 2 + q.size(3));
  if (is_low(q)) scratch += q.element_size() * tile.queries * tile.keys;
  if (meta_device().type == c10::kCPU) touch_scratch(scratch, meta_device().threads);
  return {y, log_sums};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(
    const at::Tensor&, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor&,
    const at::Tensor&, double, bool, const std::optional<at::Tensor>&, std::optional<double>) {
  note_attention(q, k, 2);
  const std::tuple gradients{heads_like(q), heads_like(k), heads_like(v)};
  const Tile tile(q.size(2));
  const int64_t element = kFloat + (is_low(q) ? q.element_size() : 0);
  if (meta_device().type == c10::kCPU) {
    touch_scratch(2 * tile.queries * tile.keys * element, meta_device().threads);
  }
  return gradients;
}

/// Sizes of queries of flash attention: [tokens of documents, heads, head_dim] or [B, T, heads, head_dim].
struct FlashSizes {
  int64_t tokens, heads, head_dim, keys;

  FlashSizes(const at::Tensor& q, int64_t longest, std::optional<int64_t> window_left)
      : tokens(q.numel() / q.size(-1) / q.size(-2)),
        heads(q.size(-2)),
        head_dim(q.size(-1)),
        keys(window_left ? std::min(longest, *window_left + 1) : longest) {}
  void note() const { note_product(tokens * heads, 2 * keys, head_dim, ProductKind::kAttention); }
};

/// Allocates like mha_varlen_fwd() and mha_fwd() of libtorch's kernels for GPUs. `More`: arguments that later
/// versions of libtorch have (2.15: block_table and num_splits), which this project does not give.
template <typename... More>
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> flash_attention(
    const at::Tensor& q, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
    const std::optional<at::Tensor>&, c10::SymInt longest, c10::SymInt, double, bool, bool,
    std::optional<double>, std::optional<c10::SymInt> window_left, std::optional<c10::SymInt>,
    const std::optional<at::Tensor>&, const std::optional<at::Tensor>&, More...) {
  std::optional<int64_t> window;
  if (window_left) window = window_left->expect_int();
  const FlashSizes sizes(q, longest.expect_int(), window);
  sizes.note();
  at::Tensor y = at::empty_like(q),
             log_sums = at::empty({sizes.heads, sizes.tokens}, q.options().dtype(at::kFloat));
  const auto numbers = q.options().dtype(at::kLong);
  return {y, log_sums, at::empty({2}, numbers), at::empty({}, numbers), at::empty({0}, q.options())};
}

/// Allocates like mha_varlen_bwd() and mha_bwd().
std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_attention_backward(
    const at::Tensor&, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor&,
    const at::Tensor&, const at::Tensor& bounds, const at::Tensor&, int64_t longest, int64_t, double, bool,
    const at::Tensor&, const at::Tensor&, std::optional<double>, std::optional<int64_t> window_left,
    std::optional<int64_t>) {
  const FlashSizes sizes(q, longest, window_left);
  for (int i = 0; i < 2; ++i) sizes.note();
  std::tuple gradients{at::empty_like(q), at::empty_like(k), at::empty_like(v)};
  // The sums are fp32, in blocks of 128 tokens of a document.
  const int64_t texts = bounds.defined() ? bounds.size(0) - 1 : q.size(0);
  const int64_t rows = sizes.tokens + 128 * texts, multiple = sizes.head_dim <= 128 ? 32 : 64;
  const int64_t width = (sizes.head_dim + multiple - 1) / multiple * multiple;
  const auto sums = q.options().dtype(at::kFloat);
  const at::Tensor products = at::empty({sizes.heads, rows}, sums),
                   dq = at::empty({rows, sizes.heads, width}, sums);
  if (k.size(-2) == sizes.heads) return gradients;
  const at::Tensor dk = at::empty(q.sizes(), q.options()), dv = at::empty(q.sizes(), q.options());
  return gradients;
}

TORCH_LIBRARY_IMPL(aten, Meta, operators) {
  operators.impl("index_select", &index_select);
  operators.impl("embedding_dense_backward", &embedding_dense_backward);
  operators.impl("native_layer_norm", &native_layer_norm);
  operators.impl("native_layer_norm_backward", &native_layer_norm_backward);
  operators.impl("_scaled_dot_product_flash_attention_for_cpu", &attention);
  operators.impl("_scaled_dot_product_flash_attention_for_cpu_backward", &attention_backward);
  operators.impl("_flash_attention_forward",
                 static_cast<at::_ops::_flash_attention_forward::schema*>(&flash_attention));
  operators.impl("_flash_attention_backward", &flash_attention_backward);
}

}  // namespace

MetaDeviceGuard::MetaDeviceGuard(const MetaDevice& device)
    : before_(std::exchange(device_of_thread, &device)) {}

MetaDeviceGuard::~MetaDeviceGuard() { device_of_thread = before_; }

const MetaDevice& meta_device() {
  static const MetaDevice cpu;
  return device_of_thread == nullptr ? cpu : *device_of_thread;
}

void touch_scratch(int64_t bytes_of_thread, int64_t most_threads) {
  const int64_t threads = std::min(meta_device().threads, most_threads);
  at::empty({bytes_of_thread * threads}, at::TensorOptions().dtype(at::kByte).device(at::kMeta));
}

at::Tensor meta_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, /*dropout_p=*/0.0,
                                                                     /*is_causal=*/true));
}

}  // namespace fsdp::kernels
