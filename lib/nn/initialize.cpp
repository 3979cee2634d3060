#include "nn/initialize.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <optional>
#include <set>

#include "nn/decoder.h"
#include "util/error.h"
#include "util/seeded_random.h"

namespace fsdp::nn {
namespace {

/// Of the normal distribution; nothing for vectors.
std::optional<double> deviation_of(const std::string& name, size_t dimensions, const ModelOptions& options) {
  if (dimensions < 2) return std::nullopt;
  const auto& deviation = model_kind(options.architecture).deviation;
  return deviation ? deviation(name, options) : options.initializer_range;
}

void fill_vector(const std::string& name, const at::Tensor& values) {
  values.fill_(name.ends_with("bias") ? 0.0 : 1.0);
}

/// at::normal_() fills a contiguous tensor of at least this size group by group, with as many draws as
/// elements; if the size is no multiple of the group's, the last group's elements are drawn twice.
constexpr int64_t kGroup = 16;

}  // namespace

void initialize_parameter(const std::string& name, const at::Tensor& parameter, const ModelOptions& options,
                          uint64_t seed) {
  at::NoGradGuard no_grad;
  const auto deviation = deviation_of(name, static_cast<size_t>(parameter.dim()), options);
  if (!deviation) return fill_vector(name, parameter);
  parameter.normal_(0.0, *deviation, util::named_generator(seed, name));
}

void initialize_elements(const std::string& name, at::IntArrayRef sizes, int64_t begin, const at::Tensor& out,
                         const ModelOptions& options, uint64_t seed) {
  at::NoGradGuard no_grad;
  const int64_t numel = c10::multiply_integers(sizes), end = begin + out.numel();
  FSDP_CHECK(out.dim() == 1 && begin >= 0 && end <= numel, name);
  const auto deviation = deviation_of(name, sizes.size(), options);
  if (!deviation) return fill_vector(name, out);
  if (numel % kGroup != 0) {
    at::Tensor whole = at::empty(sizes, out.options());
    initialize_parameter(name, whole, options, seed);
    out.copy_(whole.view({-1}).narrow(0, begin, out.numel()));
    return;
  }
  at::Generator generator = util::named_generator(seed, name);
  util::skip_draws(generator, begin / kGroup * kGroup);
  at::Tensor group = at::empty({kGroup}, out.options());
  for (int64_t at = begin; at < end;) {
    const int64_t of_group = at % kGroup, left = end - at;
    const int64_t whole_groups = of_group == 0 ? left / kGroup * kGroup : 0;
    const int64_t count = whole_groups > 0 ? whole_groups : std::min(kGroup - of_group, left);
    const at::Tensor here = out.narrow(0, at - begin, count);
    if (whole_groups > 0) {
      here.normal_(0.0, *deviation, generator);
    } else {
      here.copy_(group.normal_(0.0, *deviation, generator).narrow(0, of_group, count));
    }
    at += count;
  }
}

void initialize_parameters(torch::nn::Module& module, const ModelOptions& options, uint64_t seed) {
  std::set<const void*> done;
  for (const auto& parameter : module.named_parameters()) {
    if (!done.insert(parameter.value().unsafeGetTensorImpl()).second) continue;
    initialize_parameter(parameter.key(), parameter.value(), options, seed);
  }
}

}  // namespace fsdp::nn
