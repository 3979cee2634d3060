#include "tools/generate/generate.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>

#include "base/util/error.h"
#include "support/tiny_models.h"

namespace fsdp::generate {
namespace {

using testing::make_initialized;
using testing::tiny_options;

std::vector<std::vector<int64_t>> ids_of(const std::vector<Sample>& samples) {
  std::vector<std::vector<int64_t>> ids;
  for (const Sample& sample : samples) ids.push_back(sample.ids);
  return ids;
}

class Generate : public ::testing::TestWithParam<const char*> {
 protected:
  nn::ModelOptions model_options_ = tiny_options(GetParam());
  std::shared_ptr<nn::Stage> model_ = make_initialized(model_options_);
  std::vector<int64_t> prompt_ = {1, 2, 3};

  std::vector<Sample> run(const GenerationOptions& options, const GenerationHooks& hooks = {}) {
    return generate(*model_, model_options_, prompt_, options, hooks);
  }
};

TEST_P(Generate, GreedyTextIsThatOfWholeForwards) {
  const std::vector<Sample> samples = run({.sampling = {.temperature = 0}, .max_new_tokens = 12});
  at::NoGradGuard no_grad;
  std::vector<int64_t> ids = prompt_;
  for (int i = 0; i < 12; ++i) {
    at::Tensor scores = model_->forward(at::tensor(ids, at::kLong).unsqueeze(0))[0][-1];
    ids.push_back(scores.argmax().item<int64_t>());
  }
  EXPECT_EQ(samples.at(0).ids, std::vector<int64_t>(ids.begin() + 3, ids.end()));
  EXPECT_EQ(samples[0].ending, Ending::kLength);
  EXPECT_GT(samples[0].tokens_per_second(), 0);
}

TEST_P(Generate, TheSameSeedGivesTheSameTextsOnAnyNumberOfThreads) {
  const GenerationOptions options{.sampling = {.temperature = 1}, .max_new_tokens = 13, .num_samples = 3};
  const int before = at::get_num_threads();
  const auto expected = ids_of(run(options));
  for (int threads : {1, 2, 5}) {
    at::set_num_threads(threads);
    EXPECT_EQ(ids_of(run(options)), expected) << threads;
  }
  at::set_num_threads(before);
  EXPECT_NE(expected[0], expected[1]);
  auto other = options;
  other.seed = 5;
  EXPECT_NE(ids_of(run(other)), expected);
}

TEST_P(Generate, ASampleDoesNotDependOnHowManyThereAre) {
  GenerationOptions options{.sampling = {.temperature = 1}, .max_new_tokens = 6, .num_samples = 20};
  const auto many = ids_of(run(options));
  options.num_samples = 2;
  const auto two = ids_of(run(options));
  EXPECT_EQ(many[0], two[0]);
  EXPECT_EQ(many[1], two[1]);
  EXPECT_EQ(many.size(), 20u);
}

TEST_P(Generate, SamplesEndApart) {
  GenerationOptions options{.sampling = {.temperature = 1}, .max_new_tokens = 13, .num_samples = 8};
  const auto whole = run(options);
  options.stop_ids = {whole[0].ids[4], whole[1].ids[2]};
  const auto stopped = run(options);
  for (size_t i = 0; i < whole.size(); ++i) {
    const auto end = std::find_first_of(whole[i].ids.begin(), whole[i].ids.end(), options.stop_ids.begin(),
                                        options.stop_ids.end());
    EXPECT_EQ(stopped[i].ids, std::vector<int64_t>(whole[i].ids.begin(), end)) << i;
    EXPECT_EQ(stopped[i].ending, end == whole[i].ids.end() ? Ending::kLength : Ending::kEndOfText);
  }
  EXPECT_EQ(stopped[0].ending, Ending::kEndOfText);
}

TEST_P(Generate, TellsOfEachTokenAndEndsWhenTold) {
  std::vector<std::vector<int64_t>> heard(40);
  GenerationHooks hooks;
  hooks.on_token = [&](int64_t sample, int64_t id) { heard[static_cast<size_t>(sample)].push_back(id); };
  const GenerationOptions options{.sampling = {.temperature = 1}, .max_new_tokens = 10, .num_samples = 40};
  EXPECT_EQ(ids_of(run(options, hooks)), heard);

  // Stops in the second batch of samples; the third does not begin.
  const auto whole = heard;
  heard.assign(40, {});
  hooks.stop_requested = [&] { return heard[kRowsAtOnce].size() == 3; };
  const auto samples = run(options, hooks);
  ASSERT_EQ(samples.size(), static_cast<size_t>(2 * kRowsAtOnce));
  for (size_t i = 0; i < samples.size(); ++i) {
    const bool first_batch = i < static_cast<size_t>(kRowsAtOnce);
    EXPECT_EQ(samples[i].ids, heard[i]);
    EXPECT_EQ(samples[i].ids.size(), first_batch ? 10u : 3u) << i;
    EXPECT_EQ(samples[i].ending, first_batch ? Ending::kLength : Ending::kStopped) << i;
    EXPECT_TRUE(std::equal(heard[i].begin(), heard[i].end(), whole[i].begin()));
  }
}

TEST_P(Generate, OnlyAllowedIdsAreChosen) {
  GenerationOptions options{.sampling = {.temperature = 5}, .max_new_tokens = 13, .num_samples = 4};
  options.allowed_ids = 4;
  for (const auto& ids : ids_of(run(options))) {
    for (int64_t id : ids) EXPECT_LT(id, 4);
  }
}

TEST_P(Generate, FillsThePositionsOfTheModelAndRefusesMore) {
  EXPECT_EQ(run({.max_new_tokens = 13})[0].ids.size(), 13u);
  EXPECT_THROW(run({.max_new_tokens = 14}), util::Error);
  try {
    run({.max_new_tokens = std::numeric_limits<int64_t>::max()});
    FAIL();
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find("but 9223372036854775807 are requested"), std::string::npos)
        << error.what();
  }
  prompt_ = {};
  EXPECT_THROW(run({.max_new_tokens = 1}), util::Error);
  prompt_ = {17};
  try {
    run({.max_new_tokens = 1});
    FAIL();
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_STREQ(
        error.what(),
        "tokens of the text must be less than the model's vocab_size = 17, but one is 17; the tokenizer is "
        "not the one that the model was trained with");
  }
}

INSTANTIATE_TEST_SUITE_P(, Generate, ::testing::Values("llama", "gpt2"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace fsdp::generate
