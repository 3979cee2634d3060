#include "kernels/dropout.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "kernels/cuda/kernels.h"
#include "kernels/fused.h"
#include "kernels/row_kernels.h"
#include "util/error.h"
#include "util/hash.h"
#include "util/parallel.h"

namespace fsdp::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Variable;
using torch::autograd::variable_list;

/// Values that are worth a thread.
constexpr int64_t kPiece = 16384;

struct Choice {
  double p = 0;
  uint64_t key = 0;
  int64_t first_row = 0;
};

/// One hash decides on two values, by 32 bits each.
template <typename T>
void drop_row(const T* from, T* to, int64_t begin, int64_t end, uint64_t row_key, uint32_t limit,
              float scale) {
  for (int64_t i = begin; i < end; i += 2) {
    const uint64_t bits = util::mix64(row_key + static_cast<uint64_t>(i / 2));
    to[i] = static_cast<uint32_t>(bits) < limit ? T(0) : T(static_cast<float>(from[i]) * scale);
    if (i + 1 < end) {
      to[i + 1] =
          static_cast<uint32_t>(bits >> 32) < limit ? T(0) : T(static_cast<float>(from[i + 1]) * scale);
    }
  }
}

at::Tensor dropped_on_cpu(const at::Tensor& x, const Choice& choice) {
  at::Tensor y = at::empty_like(x);
  const int64_t rows = x.size(0), width = x.numel() / std::max<int64_t>(rows, 1);
  const auto limit = static_cast<uint32_t>(choice.p * 4294967296.0);
  const auto scale = static_cast<float>(1 / (1 - choice.p));
  // A row in pieces of an even length, so that two values of a hash stay together.
  const int64_t pieces = std::max<int64_t>(1, (width + kPiece - 1) / kPiece);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "dropout", [&] {
    const auto* from = x.const_data_ptr<scalar_t>();
    auto* to = y.data_ptr<scalar_t>();
    util::parallel_for(0, rows * pieces, std::max<int64_t>(1, kPiece / std::max<int64_t>(1, width)),
                       [&](int64_t begin, int64_t end) {
                         for (int64_t at = begin; at < end; ++at) {
                           const int64_t row = at / pieces, first = at % pieces * kPiece;
                           const uint64_t row_key = util::mix64(
                               choice.key ^ util::mix64(static_cast<uint64_t>(choice.first_row + row)));
                           drop_row(from + row * width, to + row * width, first,
                                    std::min(width, first + kPiece), row_key, limit, scale);
                         }
                       });
  });
  return y;
}

at::Tensor dropped_on_gpu(const at::Tensor& x, const Choice& choice) {
  const c10::DeviceGuard guard(x.device());
  at::Tensor y = at::empty_like(x);
  const int64_t rows = x.size(0);
  cuda::dropout(element_of(x), {.x = x.const_data_ptr(),
                                .y = y.data_ptr(),
                                .rows = rows,
                                .width = x.numel() / std::max<int64_t>(rows, 1),
                                .key = choice.key,
                                .first_row = choice.first_row,
                                .p = choice.p});
  return y;
}

at::Tensor dropped(const at::Tensor& given, const Choice& choice) {
  if (given.is_meta()) return at::empty_like(given.contiguous());
  if (given.is_cpu()) return dropped_on_cpu(given.contiguous(), choice);
  if (can_fuse(given)) return dropped_on_gpu(given.contiguous(), choice);
  // Other types and devices: the choice for ones, where it can be made.
  const auto options = at::TensorOptions().dtype(at::kFloat).device(given.device());
  const at::Tensor ones = at::ones(given.sizes(), options);
  const at::Tensor factors =
      can_fuse(ones) ? dropped_on_gpu(ones, choice) : dropped_on_cpu(ones.cpu(), choice);
  return given * factors.to(given.options());
}

class Dropout final : public Function<Dropout> {
 public:
  static Variable forward(AutogradContext* context, const Variable& x, double p, int64_t key,
                          int64_t first_row) {
    context->saved_data["p"] = p;
    context->saved_data["key"] = key;
    context->saved_data["first_row"] = first_row;
    return dropped(x, {.p = p, .key = static_cast<uint64_t>(key), .first_row = first_row});
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    auto& saved = context->saved_data;
    return {dropped(gradients[0], {.p = saved["p"].toDouble(),
                                   .key = static_cast<uint64_t>(saved["key"].toInt()),
                                   .first_row = saved["first_row"].toInt()}),
            {},
            {},
            {}};
  }
};

}  // namespace

at::Tensor dropout(const at::Tensor& x, double p, uint64_t key, int64_t first_row) {
  FSDP_CHECK(p >= 0 && p < 1 && x.dim() >= 1, "dropout of ", p);
  return Dropout::apply(x, p, static_cast<int64_t>(key), first_row);
}

}  // namespace fsdp::kernels
