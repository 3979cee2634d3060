#include "tools/generate/sampler.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "base/util/error.h"

namespace fsdp::generate {
namespace {

/// How often each id comes in `draws` choices.
std::map<int64_t, int> counts(const SamplingOptions& options, const at::Tensor& scores, int draws,
                              int64_t allowed = 100) {
  Sampler sampler(options, 3, "test");
  std::map<int64_t, int> found;
  for (int i = 0; i < draws; ++i) ++found[sampler.choose(scores, allowed)];
  return found;
}

TEST(Sampler, ChoosesAsOftenAsTheProbabilitiesSay) {
  // Probabilities 0.5, 0.3, 0.2 at temperature 1.
  const at::Tensor scores = at::tensor({0.5, 0.3, 0.2}).log();
  constexpr int kDraws = 20'000;
  auto found = counts({.temperature = 1, .top_k = 0}, scores, kDraws);
  // Five standard deviations.
  for (auto [id, p] : std::map<int64_t, double>{{0, 0.5}, {1, 0.3}, {2, 0.2}}) {
    EXPECT_NEAR(found[id], kDraws * p, 5 * std::sqrt(kDraws * p * (1 - p))) << id;
  }
  // Temperature 0.5 squares the probabilities: 0.25, 0.09, 0.04 of 0.38.
  found = counts({.temperature = 0.5, .top_k = 0}, scores, kDraws);
  EXPECT_NEAR(found[0], kDraws * 0.25 / 0.38, 5 * std::sqrt(kDraws * 0.23));
  EXPECT_NEAR(found[2], kDraws * 0.04 / 0.38, 5 * std::sqrt(kDraws * 0.1));
}

TEST(Sampler, KeepsOnlyTheLikeliest) {
  const at::Tensor scores = at::tensor({0.1, 0.4, 0.3, 0.15, 0.05}).log();
  auto ids = [&](const SamplingOptions& options, int64_t allowed = 100) {
    std::set<int64_t> found;
    for (const auto& [id, count] : counts(options, scores, 3000, allowed)) found.insert(id);
    return found;
  };
  using Ids = std::set<int64_t>;
  EXPECT_EQ(ids({.temperature = 1, .top_k = 0}), (Ids{0, 1, 2, 3, 4}));
  EXPECT_EQ(ids({.temperature = 1, .top_k = 2}), (Ids{1, 2}));
  EXPECT_EQ(ids({.temperature = 1, .top_k = 50}), (Ids{0, 1, 2, 3, 4}));
  EXPECT_EQ(ids({.temperature = 1, .top_k = 0, .top_p = 0.6}), (Ids{1, 2}));
  EXPECT_EQ(ids({.temperature = 1, .top_k = 0, .top_p = 0.75}), (Ids{1, 2, 3}));
  EXPECT_EQ(ids({.temperature = 1, .top_k = 0, .top_p = 1e-9}), (Ids{1}));
  // top_p applies to what top_k leaves: 0.4 / 0.7 is more than half.
  EXPECT_EQ(ids({.temperature = 1, .top_k = 2, .top_p = 0.5}), (Ids{1}));
  EXPECT_EQ(ids({.temperature = 0}), (Ids{1}));
  EXPECT_EQ(ids({.temperature = 1, .top_k = 0}, /*allowed=*/2), (Ids{0, 1}));
}

TEST(Sampler, RepeatsItselfForTheSameSeedAndName) {
  const at::Tensor scores = at::arange(50, at::kFloat).sin();
  auto text = [&](uint64_t seed, const char* name) {
    Sampler sampler({.temperature = 1, .top_k = 20, .top_p = 0.9}, seed, name);
    std::vector<int64_t> ids;
    for (int i = 0; i < 30; ++i) ids.push_back(sampler.choose(scores, 50));
    return ids;
  };
  EXPECT_EQ(text(1, "a"), text(1, "a"));
  EXPECT_NE(text(1, "a"), text(2, "a"));
  EXPECT_NE(text(1, "a"), text(1, "b"));
}

TEST(Sampler, TakesExtremeScores) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (double temperature : {0.0, 1e-300, 1.0, 1e300}) {
    Sampler sampler({.temperature = temperature}, 1, "test");
    EXPECT_EQ(sampler.choose(at::tensor({-infinity, 3.0F, -infinity}), 3), 1) << temperature;
  }
  Sampler sampler({.temperature = 1}, 1, "test");
  EXPECT_EQ(sampler.choose(at::tensor({-1e30, 1e30}).to(at::kBFloat16), 2), 1);
  try {
    sampler.choose(at::tensor({1.0F, std::nanf("")}), 2);
    FAIL();
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kDiverged);
  }
}

TEST(Sampler, RefusesOptionsThatMeanNothing) {
  for (const SamplingOptions& options : {SamplingOptions{.temperature = -1},
                                         {.temperature = std::nan("")},
                                         {.top_k = -1},
                                         {.top_p = 0},
                                         {.top_p = 1.5},
                                         {.top_p = std::nan("")}}) {
    EXPECT_THROW(check_sampling(options), util::Error);
  }
  EXPECT_NO_THROW(check_sampling({}));
}

}  // namespace
}  // namespace fsdp::generate
