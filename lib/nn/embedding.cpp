#include "nn/embedding.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>

#include "nn/parameter.h"

namespace fsdp::nn {

Embedding::Embedding(int64_t count, int64_t size) {
  weight_ = register_parameter("weight", empty_parameter({count, size}));
}

at::Tensor Embedding::compute(const at::Tensor& ids, const StageContext&) {
  return at::embedding(weight_, ids);
}

Head::Head(int64_t hidden_size, int64_t vocab_size) {
  weight_ = register_parameter("weight", empty_parameter({vocab_size, hidden_size}));
}

Head::Head(const at::Tensor& embedding_weight) { weight_ = register_parameter("weight", embedding_weight); }

at::Tensor Head::compute(const at::Tensor& x, const StageContext&) { return at::linear(x, weight_); }

}  // namespace fsdp::nn
