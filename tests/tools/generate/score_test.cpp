#include "tools/generate/score.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "base/util/error.h"
#include "support/tiny_models.h"

namespace fsdp::generate {
namespace {

using testing::make_initialized;
using testing::tiny_options;

class ScoreOf : public ::testing::TestWithParam<const char*> {
 protected:
  /// -log of the probability of ids[i] after ids[begin, i), by the softmax of the model's scores.
  double nats_of(int64_t i, int64_t begin) {
    at::NoGradGuard no_grad;
    const std::vector<int64_t> context(ids_.begin() + begin, ids_.begin() + i);
    const at::Tensor scores =
        model_->forward(at::tensor(context, at::kLong).unsqueeze(0))[0][-1].to(at::kDouble);
    const double of_token = scores[ids_[static_cast<size_t>(i)]].item<double>();
    return std::log(scores.exp().sum().item<double>()) - of_token;
  }

  nn::ModelOptions options_ = tiny_options(GetParam());
  std::shared_ptr<nn::Stage> model_ = make_initialized(options_);
  std::vector<int64_t> ids_ = [this] {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < 41; ++i) ids.push_back((i * i + 3 * i + 1) % options_.vocab_size);
    return ids;
  }();
};

TEST_P(ScoreOf, AShortTextIsThatOfItsTokensOneByOne) {
  ids_.resize(12);
  double expected = 0;
  for (int64_t i = 1; i < 12; ++i) expected += nats_of(i, 0);
  const Score found = score(*model_, options_, ids_);
  EXPECT_NEAR(found.nats, expected, 1e-4);
  EXPECT_EQ(found.tokens, 11);
  EXPECT_EQ(found.windows, 1);
  EXPECT_NEAR(found.perplexity(), std::exp(expected / 11), 1e-4);
}

TEST_P(ScoreOf, ALongTextHasEachTokenOnceWithAtLeastWindowLessStrideBeforeIt) {
  constexpr int64_t kWindow = 10;
  for (int64_t stride : {1, 4, 7, 10}) {
    double expected = 0;
    int64_t done = 1, windows = 0;
    for (int64_t begin = 0; done < 41; begin += stride, ++windows) {
      for (; done < 41 && done <= begin + kWindow; ++done) expected += nats_of(done, begin);
    }
    const Score found = score(*model_, options_, ids_, {.window = kWindow, .stride = stride});
    EXPECT_NEAR(found.nats, expected, 1e-3) << stride;
    EXPECT_EQ(found.tokens, 40) << stride;
    EXPECT_EQ(found.windows, windows) << stride;
  }
}

TEST_P(ScoreOf, WindowAndStrideDefaultToTheLongestSequenceAndHalfOfIt) {
  const int64_t longest = options_.max_position_embeddings;
  const Score by_default = score(*model_, options_, ids_);
  const Score given = score(*model_, options_, ids_, {.window = longest, .stride = longest / 2});
  EXPECT_EQ(by_default.nats, given.nats);
  EXPECT_GT(by_default.windows, 1);
}

TEST_P(ScoreOf, WhatCannotBeScoredIsRefused) {
  const auto refused = [&](const std::vector<int64_t>& ids, const ScoreOptions& options) {
    try {
      score(*model_, options_, ids, options);
    } catch (const util::Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      return true;
    }
    return false;
  };
  const int64_t longest = options_.max_position_embeddings;
  EXPECT_TRUE(refused({1}, {}));
  EXPECT_TRUE(refused({1, options_.vocab_size}, {}));
  EXPECT_TRUE(refused(ids_, {.window = longest + 1}));
  EXPECT_TRUE(refused(ids_, {.window = 5, .stride = 6}));
}

TEST_P(ScoreOf, WeightsThatAreNotFiniteHaveNoScore) {
  const at::NoGradGuard no_grad;
  model_->parameters()[0].fill_(std::numeric_limits<float>::quiet_NaN());
  try {
    score(*model_, options_, ids_);
    FAIL() << "went on";
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kDiverged);
    EXPECT_NE(std::string(error.what()).find("the score of the tokens 1 to "), std::string::npos)
        << error.what();
  }
}

TEST_P(ScoreOf, EndsWhenTold) {
  int asked = 0;
  const Score found = score(*model_, options_, ids_,
                            {.window = 10, .stride = 5, .stop_requested = [&] { return ++asked == 3; }});
  EXPECT_TRUE(found.stopped);
  EXPECT_EQ(found.windows, 2);
  EXPECT_EQ(found.tokens, 15);
}

INSTANTIATE_TEST_SUITE_P(Models, ScoreOf, ::testing::Values("llama", "gpt2"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace fsdp::generate
