#include "model/kernels/head_products.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <span>

#include "base/util/error.h"
#include "model/kernels/below_autograd.h"
#include "model/kernels/factor_products.h"
#include "model/kernels/fused.h"
#include "model/kernels/gradient_sink.h"
#include "model/kernels/meta.h"
#include "model/kernels/sample_sums.h"

namespace fsdp::kernels {
namespace {

/// Multiple of the columns of logits on a GPU; 16 bytes would suffice.
constexpr int64_t kColumnMultiple = 64;

}  // namespace

int64_t device_logits_stride(int64_t vocabulary) {
  return (vocabulary + kColumnMultiple - 1) / kColumnMultiple * kColumnMultiple;
}

int64_t row_stride(const at::Tensor& x, int64_t vocabulary) {
  return is_for_cpu(x) ? vocabulary : device_logits_stride(vocabulary);
}

HeadProducts::HeadProducts(const at::Tensor& x, const at::Tensor& weight, Matmul matmul)
    : weight_(weight), matmul_(matmul) {
  const int64_t all = weight.size(0), regular = all / kColumnMultiple * kColumnMultiple;
  if (is_for_cpu(x) || regular == 0 || regular == all) {
    parts_ = {{0, all}};
  } else {
    parts_ = {{regular, all - regular}, {0, regular}};
  }
}

at::Tensor HeadProducts::logits(const at::Tensor& x) const {
  const int64_t vocabulary = weight_.size(0), stride = row_stride(x, vocabulary);
  if (stride == vocabulary) return product(x, weight_, matmul_);
  at::Tensor logits = at::empty({x.size(0), stride}, x.options()).narrow(1, 0, vocabulary);
  for (const VocabularyRange& part : parts_)
    product_into(part.of(logits, 1), x, part.of(weight_, 0), matmul_);
  return logits;
}

// The small part comes first, so that the sum is rounded like one product.
void HeadProducts::gradient_of_input(const at::Tensor& dx, const at::Tensor& dlogits) const {
  for (size_t i = 0; i < parts_.size(); ++i) {
    const at::Tensor columns = parts_[i].of(dlogits, 1), rows = parts_[i].of(weight_, 0);
    if (i == 0) {
      product_into(dx, columns, rows.t(), matmul_);
    } else {
      at::Tensor sum = dx;
      add_product_of(sum, columns, rows, matmul_);
    }
  }
}

void HeadProducts::add_weight_gradient(at::Tensor& dweight, const at::Tensor& dlogits, const at::Tensor& x,
                                       bool of_all_rows) const {
  if (parts_.size() == 1 && of_all_rows) {
    dweight = product(dlogits.t(), x.t(), matmul_);
  } else if (parts_.size() == 1) {
    add_product(dweight, dlogits.t(), x.t(), matmul_);
  } else {
    const bool adds = dweight.defined();
    if (!adds)
      dweight = at::empty(weight_.sizes(), of_all_rows ? x.options() : x.options().dtype(at::kFloat));
    multiply_parts(dweight, dlogits, x, adds);
  }
}

at::Tensor HeadProducts::weight_gradient(const at::Tensor& dlogits, const at::Tensor& x) const {
  if (parts_.size() == 1) return kernels::weight_gradient(weight_, flipped(dlogits), x, matmul_);
  auto place = take_gradient_place(weight_, at::kFloat);
  if (!place) place = take_gradient_place(weight_, x.scalar_type());
  const at::Tensor dweight = place ? place->memory : at::empty(weight_.sizes(), x.options());
  multiply_parts(dweight, dlogits, x, place && place->adds);
  return place ? at::Tensor() : dweight;
}

void HeadProducts::multiply_parts(const at::Tensor& dweight, const at::Tensor& dlogits, const at::Tensor& x,
                                  bool adds) const {
  for (const VocabularyRange& part : parts_) {
    at::Tensor rows = part.of(dweight, 0);
    const at::Tensor columns = part.of(dlogits, 1).t();
    adds ? add_product(rows, columns, x.t(), matmul_) : product_into(rows, columns, x.t(), matmul_);
  }
}

at::Tensor weight_gradient_by_sample(const at::Tensor& weight, const at::Tensor& x,
                                     c10::function_ref<at::Tensor(int64_t first, int64_t count)> dlogits_of) {
  SampleSums* const samples = SampleSums::current();
  const int64_t rows = samples->rows_of_sample(x.size(0)),
                most = cross_entropy_chunk_rows(rows, weight.size(0));
  return gradient_along_tree(weight, samples->samples(), [&](int64_t sample, const at::Tensor& to) {
    for (int64_t begin = 0; begin < rows; begin += most) {
      const int64_t first = sample * rows + begin, count = std::min(most, rows - begin);
      const ProductOf product{.c = to, .a = flipped(dlogits_of(first, count)), .adds = begin > 0};
      multiply_all_into(std::span(&product, 1), x.narrow(0, first, count));
    }
  });
}

at::Tensor cap_logits(at::Tensor& logits, double cap, bool differentiates) {
  if (cap == 0) return {};
  logits.div_(cap).tanh_();
  const at::Tensor slope = differentiates ? logits.square().neg_().add_(1) : at::Tensor();
  logits.mul_(cap);
  return slope;
}

void check_targets(const at::Tensor& targets, int64_t vocabulary) {
  if (!targets.is_cpu()) return;
  const auto* first = targets.const_data_ptr<int64_t>();
  const auto outside = std::find_if(first, first + targets.numel(), [&](int64_t token) {
    return token != kIgnored && (token < 0 || token >= vocabulary);
  });
  if (outside == first + targets.numel()) return;
  fail(ErrorKind::kUsage, "target tokens must be below ", vocabulary,
       ", the size of the vocabulary, but one is ", *outside);
}

}  // namespace fsdp::kernels
