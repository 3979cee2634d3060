#include "kernels/embedding.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "kernels/cuda/kernels.h"
#include "kernels/fused.h"
#include "kernels/gradient_sink.h"
#include "kernels/meta.h"
#include "kernels/row_kernels.h"
#include "util/parallel.h"

namespace fsdp::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Variable;
using torch::autograd::variable_list;

/// Columns that one thread takes at least.
constexpr int64_t kColumns = 64;

/// table [V, D] += rows [N, D] at `ids` [N]. Every thread goes through all rows, so that each element is
/// summed in the order of the rows.
template <typename T>
void add_rows(const at::Tensor& table, const at::Tensor& rows, const at::Tensor& ids) {
  if (rows.is_meta()) return;
  const int64_t width = table.size(1), count = ids.numel();
  auto* to = table.data_ptr<float>();
  const T* from = rows.const_data_ptr<T>();
  const int64_t* id = ids.const_data_ptr<int64_t>();
  const int64_t grain = std::max(kColumns, kGrain / std::max<int64_t>(count, 1));
  util::parallel_for(0, width, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = 0; row < count; ++row) {
      float* sum = to + id[row] * width;
      const T* part = from + row * width;
      for (int64_t i = begin; i < end; ++i) sum[i] += static_cast<float>(part[i]);
    }
  });
}

/// The same on a GPU, for a table that is fp32 or, if nothing is in it yet, of the rows' type. Rows of equal
/// ids are brought together, so that each sum has one order.
void add_rows_on_gpu(const at::Tensor& table, const at::Tensor& rows, const at::Tensor& ids, bool adds) {
  const c10::DeviceGuard guard(rows.device());
  const auto [sorted, order] = at::sort(ids.flatten(), /*stable=*/true, /*dim=*/0, /*descending=*/false);
  if (rows.is_meta()) return;
  cuda::embedding_backward(element_of(rows), {.dy = rows.const_data_ptr(),
                                              .ids = sorted.const_data_ptr<int64_t>(),
                                              .order = order.const_data_ptr<int64_t>(),
                                              .table = table.data_ptr(),
                                              .table_is_fp32 = table.scalar_type() == at::kFloat,
                                              .adds = adds,
                                              .rows = sorted.numel(),
                                              .width = table.size(1)});
}

class Embedding final : public Function<Embedding> {
 public:
  static Variable forward(AutogradContext* context, const Variable& weight, const Variable& ids) {
    context->save_for_backward({weight, ids});
    return at::embedding(weight, ids);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& weight = saved[0];
    const at::Tensor dy = gradients[0].contiguous(), ids = saved[1].contiguous();
    if (!can_fuse(dy)) return {at::embedding_dense_backward(dy, ids, weight.size(0), -1, false), {}};
    if (auto place = take_gradient_place(weight, at::kFloat)) {
      if (!place->adds) place->memory.zero_();
      if (is_for_cuda(dy)) {
        add_rows_on_gpu(place->memory, dy, ids, place->adds);
      } else if (dy.scalar_type() == at::kFloat) {
        add_rows<float>(place->memory, dy, ids);
      } else {
        add_rows<at::BFloat16>(place->memory, dy, ids);
      }
      return {at::Tensor(), at::Tensor()};
    }
    if (is_for_cuda(dy)) {
      at::Tensor table = at::zeros({weight.size(0), weight.size(1)}, dy.options());
      add_rows_on_gpu(table, dy, ids, /*adds=*/false);
      return {table, at::Tensor()};
    }
    return {at::embedding_dense_backward(dy, ids, weight.size(0), -1, false), at::Tensor()};
  }
};

}  // namespace

at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids) {
  return Embedding::apply(weight, ids);
}

}  // namespace fsdp::kernels
