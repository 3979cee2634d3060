#include "model/kernels/sample_sums.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <utility>

#include "base/util/error.h"
#include "model/kernels/gradient_sink.h"

namespace fsdp::kernels {
namespace {

thread_local SampleSums* of_thread = nullptr;

}  // namespace

SampleSums::SampleSums(int64_t samples, double counted)
    : losses(static_cast<size_t>(samples), 0.0), samples_(samples), counted_(counted) {
  FSDP_CHECK(of_thread == nullptr && samples > 0 && counted >= 1, samples, " samples, ", counted, " targets");
  of_thread = this;
}

SampleSums::~SampleSums() { of_thread = nullptr; }

SampleSums* SampleSums::current() { return of_thread; }

int64_t SampleSums::rows_of_sample(int64_t rows) const {
  FSDP_CHECK(rows % samples_ == 0, rows, " rows of ", samples_, " samples");
  return rows / samples_;
}

void sum_along_tree(int64_t samples, const at::Tensor& sum,
                    c10::function_ref<void(int64_t sample, const at::Tensor& to)> write) {
  // Sums of 2^level samples that wait for their neighbour, the largest first. The largest of all is `sum`.
  std::vector<at::Tensor> places{sum};
  std::vector<int> levels;
  for (int64_t sample = 0; sample < samples; ++sample) {
    if (places.size() == levels.size()) places.push_back(at::empty_like(sum));
    write(sample, places[levels.size()]);
    levels.push_back(0);
    const auto last = [&] { return levels.size() - 1; };
    const bool is_end = sample + 1 == samples;
    while (levels.size() > 1 && (levels[last() - 1] == levels[last()] || is_end)) {
      places[last() - 1].add_(places[last()]);
      levels.pop_back();
      ++levels.back();
    }
  }
}

at::Tensor gradient_along_tree(const at::Tensor& parameter, int64_t samples,
                               c10::function_ref<void(int64_t sample, const at::Tensor& to)> write) {
  if (const auto place = take_gradient_place(parameter, at::kFloat)) {
    FSDP_CHECK(!place->adds, "a gradient of samples that would be added to another");
    sum_along_tree(samples, place->memory, write);
    return {};
  }
  at::Tensor sum = at::empty(parameter.sizes(), parameter.options().dtype(at::kFloat).requires_grad(false));
  sum_along_tree(samples, sum, write);
  GradientSink* sink = gradient_sink(parameter);
  if (sink == nullptr) return sum;
  FSDP_CHECK(!parameter.grad().defined());
  at::Tensor(parameter).mutable_grad() = std::move(sum);
  (*sink)(parameter);
  return {};
}

}  // namespace fsdp::kernels
