#include "model/nn/initialize.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "base/tensor/rectangle_view.h"
#include "base/tensor/seeded_random.h"
#include "base/util/error.h"
#include "model/families/families.h"
#include "model/nn/decoder.h"

namespace fsdp::nn {
namespace {

/// Standard deviation of the initial normal distribution; nothing for vectors.
std::optional<double> deviation_of(const std::string& name, size_t dimensions, const ModelOptions& options) {
  if (dimensions < 2) return std::nullopt;
  const auto& deviation = model_kind(options.architecture).deviation;
  return deviation ? deviation(name, options) : options.initializer_range;
}

void fill_vector(const std::string& name, const at::Tensor& values, const ModelOptions& options) {
  const Family* family = find_family(options.architecture);
  const bool adds_one = family != nullptr && family->norm == NormKind::kRmsPlusOne;
  values.fill_(name.ends_with("bias") || adds_one ? 0.0 : 1.0);
}

/// at::normal_() fills a contiguous tensor of at least this size group by group, with as many draws as
/// elements; if the size is no multiple of the group's, the last group's elements are drawn twice.
constexpr int64_t kGroup = 16;

/// The numbers that normal_() gives a tensor whose size is a multiple of kGroup, in ascending ranges: each
/// group is drawn at most once, and those in between are skipped.
class NormalNumbers {
 public:
  NormalNumbers(at::Generator generator, double deviation)
      : generator_(std::move(generator)), deviation_(deviation) {}

  /// Numbers from `begin` on, which is not before the end of the last range.
  void fill(int64_t begin, const at::Tensor& out) {
    const int64_t end = begin + out.numel();
    for (int64_t at = begin; at < end;) {
      const int64_t of_group = at % kGroup, left = end - at;
      const int64_t whole_groups = of_group == 0 ? left / kGroup * kGroup : 0;
      const int64_t count = whole_groups > 0 ? whole_groups : std::min(kGroup - of_group, left);
      const at::Tensor here = out.narrow(0, at - begin, count);
      if (whole_groups > 0) {
        draw(at, here);
      } else {
        if (drawn_ != at - of_group + kGroup) draw(at - of_group, group_);
        here.copy_(group_.narrow(0, of_group, count));
      }
      at += count;
    }
  }

 private:
  void draw(int64_t begin, const at::Tensor& out) {
    util::skip_draws(generator_, begin - drawn_);
    out.normal_(0.0, deviation_, generator_);
    drawn_ = begin + out.numel();
  }

  at::Generator generator_;
  double deviation_;
  int64_t drawn_ = 0;  ///< numbers so far, drawn or skipped
  at::Tensor group_ = at::empty({kGroup}, at::TensorOptions(at::kFloat));
};

}  // namespace

void initialize_parameter(const std::string& name, const at::Tensor& parameter, const ModelOptions& options,
                          uint64_t seed) {
  at::NoGradGuard no_grad;
  const auto deviation = deviation_of(name, static_cast<size_t>(parameter.dim()), options);
  if (!deviation) return fill_vector(name, parameter, options);
  parameter.normal_(0.0, *deviation, util::named_generator(seed, name));
}

void initialize_elements(const std::string& name, at::IntArrayRef sizes,
                         const std::vector<util::Rectangle>& parts, const at::Tensor& out,
                         const ModelOptions& options, uint64_t seed) {
  at::NoGradGuard no_grad;
  const int64_t numel = c10::multiply_integers(sizes);
  for (const util::Rectangle& part : parts) FSDP_CHECK(part.fits(numel), name);
  FSDP_CHECK(out.dim() == 1 && out.numel() == util::numel_of(parts), name);
  const auto deviation = deviation_of(name, sizes.size(), options);
  if (!deviation) return fill_vector(name, out, options);
  at::Tensor whole;
  if (numel % kGroup != 0) {
    whole = at::empty(sizes, out.options());
    initialize_parameter(name, whole, options, seed);
  }
  NormalNumbers numbers(util::named_generator(seed, name), *deviation);
  util::for_each_part(parts, out, [&](const util::Rectangle& part, const at::Tensor& values) {
    if (part.numel() == 0) return;
    if (whole.defined()) {
      values.view({part.height(), part.length()}).copy_(util::rectangle_view(whole, part));
      return;
    }
    const int64_t columns = numel / part.rows;
    const int64_t runs = part.length() == columns ? 1 : part.height();
    const at::Tensor of_runs = values.view({runs, -1});
    for (int64_t run = 0; run < runs; ++run) {
      numbers.fill((part.row_begin + run) * columns + part.begin, of_runs[run]);
    }
  });
}

void initialize_parameters(torch::nn::Module& module, const ModelOptions& options, uint64_t seed) {
  std::set<const void*> done;
  for (const auto& parameter : module.named_parameters()) {
    if (!done.insert(parameter.value().unsafeGetTensorImpl()).second) continue;
    initialize_parameter(parameter.key(), parameter.value(), options, seed);
  }
}

}  // namespace fsdp::nn
