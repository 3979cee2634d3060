#include "model/kernels/stochastic_rounding.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/util/hash.h"

namespace fsdp::kernels {
namespace {

constexpr float kInfinite = std::numeric_limits<float>::infinity();

RoundedElements vector_of(int64_t n, uint64_t key = 0x123456789abcdef0) {
  return {.key = key, .columns = n, .part = {0, n}};
}

at::Tensor rounded(const at::Tensor& values, at::ScalarType type, const RoundedElements& elements) {
  at::Tensor to = at::empty(values.sizes(), values.options().dtype(type));
  round_stochastically(values, to, elements);
  return to;
}

at::Tensor bits_of(const at::Tensor& x) { return x.view(at::kShort); }

/// A value in the middle of `n` places.
at::Tensor repeated(double value, int64_t n) { return at::full({n}, value, at::TensorOptions(at::kFloat)); }

class StochasticRounding : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  static at::ScalarType type() { return GetParam(); }
  static bool is_half() { return type() == at::kHalf; }
};

INSTANTIATE_TEST_SUITE_P(To, StochasticRounding, ::testing::Values(at::kBFloat16, at::kHalf),
                         [](const auto& info) { return c10::toString(info.param); });

TEST_P(StochasticRounding, HasTheValueAsItsMean) {
  constexpr int64_t kTimes = 1 << 18;
  for (double value : {1.001, -1.0007, 3.14159, 1e-3, 0.1, -77.7, 6.2e-5, 3e-5, 1e-6, 2.1e-8, -4.4e-6}) {
    const at::Tensor found = rounded(repeated(value, kTimes), type(), vector_of(kTimes)).to(at::kDouble);
    const double low = found.min().item<double>(), high = found.max().item<double>();
    const double given = static_cast<double>(static_cast<float>(value)), step = high - low;
    EXPECT_TRUE(low <= given && given <= high) << value;
    ASSERT_GT(step, 0) << value << " is between two neighbours";
    EXPECT_TRUE(found.eq(low).logical_or(found.eq(high)).all().item<bool>()) << "only the two neighbours";
    // Six standard deviations of the mean of so many; a constant bias of a 200th of the step would fail.
    EXPECT_NEAR(found.mean().item<double>(), given, 6 * step * 0.5 / std::sqrt(kTimes)) << value;
  }
}

TEST_P(StochasticRounding, TakesTheNeighboursOfRoundingDownAndUp) {
  at::manual_seed(3);
  const at::Tensor values = (at::randn({100'000}) * at::randn({100'000}).mul(4).exp()).clamp_(-6e4, 6e4);
  const at::Tensor nearest = values.to(type()).to(at::kFloat);
  const at::Tensor found = rounded(values, type(), vector_of(values.numel())).to(at::kFloat);
  // Between the value and the result lies none of the type's numbers: the distance is below one step.
  const at::Tensor magnitude = values.abs().clamp_min(is_half() ? std::exp2(-14) : std::exp2(-126));
  const at::Tensor step = at::exp2(at::floor(at::log2(magnitude)) - (is_half() ? 10 : 7));
  EXPECT_TRUE((found - values).abs().lt(step).all().item<bool>());
  EXPECT_GT(found.ne(nearest).to(at::kFloat).mean().item<float>(), 0.2) << "a quarter is not the nearest";
  EXPECT_LT(found.ne(nearest).to(at::kFloat).mean().item<float>(), 0.3);
}

TEST_P(StochasticRounding, KeepsEveryNumberOfTheType) {
  const at::Tensor all = at::arange(-32768, 32768, at::kInt).to(at::kShort).view(type());
  const at::Tensor values = all.to(at::kFloat);
  const at::Tensor found = rounded(values, type(), vector_of(values.numel()));
  const at::Tensor is_nan = values.isnan();
  EXPECT_TRUE(bits_of(found).eq(bits_of(all)).logical_or(is_nan).all().item<bool>());
  EXPECT_TRUE(found.isnan().eq(is_nan).all().item<bool>());
}

TEST_P(StochasticRounding, OfFiniteNumbersStaysFiniteUpToTheNextPowerOfTwo) {
  const float most = at::full({}, kInfinite).to(type()).item<float>() == kInfinite
                         ? (is_half() ? 65504.0F : 3.38953139e38F)
                         : 0.0F;
  const float above = is_half() ? 65535.9F : std::numeric_limits<float>::max();
  for (float sign : {1.0F, -1.0F}) {
    const at::Tensor found = rounded(repeated(double{sign * above}, 4096), type(), vector_of(4096));
    EXPECT_TRUE(found.to(at::kFloat).eq(sign * most).all().item<bool>());
    const at::Tensor infinite = rounded(repeated(double{sign * kInfinite}, 4096), type(), vector_of(4096));
    EXPECT_TRUE(infinite.to(at::kFloat).eq(sign * kInfinite).all().item<bool>());
  }
  EXPECT_TRUE(rounded(repeated(NAN, 4096), type(), vector_of(4096)).isnan().all().item<bool>());
  const at::Tensor large = rounded(repeated(65536, 4096), type(), vector_of(4096)).to(at::kFloat);
  EXPECT_TRUE(large.eq(is_half() ? kInfinite : 65536.0F).all().item<bool>());
}

TEST_P(StochasticRounding, DependsOnTheKeyAndTheIndexInTheTensorOnly) {
  at::manual_seed(5);
  constexpr int64_t kRows = 37, kColumns = 1003;
  const at::Tensor values = at::randn({kRows, kColumns});
  const at::Tensor whole =
      rounded(values.view(-1), type(), vector_of(kRows * kColumns)).view({kRows, kColumns});
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 1003}, {0, 5}, {5, 600}, {600, 1003}}) {
    const at::Tensor part = values.slice(1, begin, end).contiguous().view(-1);
    for (int64_t first : {int64_t{0}, part.numel() / 3}) {
      RoundedElements elements = vector_of(kRows * kColumns);
      elements.columns = kColumns;
      elements.part = {begin, end, kRows};
      elements.first = first;
      const at::Tensor found = rounded(part.narrow(0, first, part.numel() - first), type(), elements);
      const at::Tensor expected =
          whole.slice(1, begin, end).contiguous().view(-1).narrow(0, first, found.numel());
      EXPECT_TRUE(bits_of(found).equal(bits_of(expected))) << begin << " " << first;
    }
  }
  RoundedElements some_rows = vector_of(kRows * kColumns);
  some_rows.columns = kColumns;
  some_rows.part = {3, 40, kRows, 2, 7};
  const at::Tensor found = rounded(values.slice(0, 2, 7).slice(1, 3, 40).flatten(), type(), some_rows);
  EXPECT_TRUE(bits_of(found).equal(bits_of(whole.slice(0, 2, 7).slice(1, 3, 40).flatten())));
  const at::Tensor other =
      rounded(values.view(-1), type(), vector_of(kRows * kColumns, 1)).view({kRows, kColumns});
  EXPECT_GT(other.ne(whole).to(at::kFloat).mean().item<float>(), 0.25) << "another key: other numbers";
}

TEST_P(StochasticRounding, IsTheSameByTensorOperationsAndOnAnyNumberOfThreads) {
  at::manual_seed(7);
  const int64_t n = 200'003;
  at::Tensor values = at::randn({n}) * at::randn({n}).mul(8).exp();
  values.narrow(0, 0, 6).copy_(at::tensor({0.0F, -0.0F, kInfinite, -kInfinite, NAN, 65530.0F}));
  // A tensor with more than 2^32 elements, in rows and as a whole.
  for (const util::Rectangle& part :
       {util::Rectangle{0, n}, util::Rectangle{(int64_t{1} << 32) - 1000, (int64_t{1} << 32) + n - 1000},
        util::Rectangle{12, 12 + n / 17 + 1, 17}, util::Rectangle{12, 12 + n / 17 + 1, 90, 3, 20}}) {
    const RoundedElements elements{.key = 99, .columns = int64_t{1} << 33, .part = part, .first = 0};
    const int threads = at::get_num_threads();
    at::set_num_threads(1);
    const at::Tensor one = rounded(values, type(), elements);
    at::set_num_threads(4);
    const at::Tensor four = rounded(values, type(), elements);
    at::set_num_threads(threads);
    at::Tensor composed = at::empty_like(one);
    round_stochastically_composed(values, composed, elements);
    EXPECT_TRUE(bits_of(four).equal(bits_of(one)));
    EXPECT_TRUE(bits_of(composed).equal(bits_of(one))) << part.begin << " " << part.rows;
  }
}

/// Whether values half way between their neighbours, from index `first` of a tensor on, were rounded up.
at::Tensor ups(int64_t n, uint64_t number, int64_t first = 0) {
  const at::Tensor halfway = repeated(1 + std::exp2(-8), n);
  const RoundedElements elements{
      .key = util::mix64(number), .columns = first + n, .part = {first, first + n}};
  return rounded(halfway, at::kBFloat16, elements).to(at::kDouble).gt(1.001).to(at::kDouble);
}

TEST(StochasticRounding, DrawsIndependentNumbersForNeighboursAndKeys) {
  constexpr int64_t kTimes = 1 << 18;
  const double most = 6 * 0.25 / std::sqrt(kTimes);
  const auto covariance = [](const at::Tensor& a, const at::Tensor& b) {
    return ((a - a.mean()) * (b - b.mean())).mean().item<double>();
  };
  const at::Tensor x = ups(kTimes, 1);
  for (int64_t distance : {1, 2, 3, 4, 8, 16, 64, 256, 4096, 65536}) {
    const int64_t n = kTimes - distance;
    EXPECT_LT(std::abs(covariance(x.narrow(0, 0, n), x.narrow(0, distance, n))), 2 * most) << distance;
  }
  for (uint64_t key : {uint64_t{2}, uint64_t{3}, uint64_t{1} << 32, (uint64_t{1} << 63) + 1}) {
    EXPECT_LT(std::abs(covariance(x, ups(kTimes, key))), most) << key;
  }
  for (int64_t first : {int64_t{1} << 31, int64_t{1} << 32, int64_t{1} << 33, int64_t{5} << 40}) {
    EXPECT_LT(std::abs(covariance(x, ups(kTimes, 1, first))), most) << first;
  }
}

}  // namespace
}  // namespace fsdp::kernels
