#include "run/train/evaluate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/util/log.h"
#include "model/nn/loss.h"
#include "shard/engine/fully_shard.h"
#include "support/sharded_run.h"
#include "support/tiny_config.h"

namespace fsdp::train {
namespace {

// 7 samples on up to 4 ranks with 2 rows a batch: some ranks have half a batch, some none.
TEST(ValidationLoss, IsTheExactMeanWhateverTheSplit) {
  testing::TemporaryFolder folder;
  config::Config config = testing::tiny_config(folder);
  data::ValidationLoader whole(config.data, config.model.vocab_size, 7, {});
  ASSERT_EQ(whole.num_samples(), 7);
  double expected = 0;
  auto plain = testing::make_initialized(config.model);
  for (int64_t i = 0; i < whole.num_batches(); ++i) {
    data::Batch batch = whole.batch(i);
    double mean = nn::next_token_loss(plain->forward(batch.inputs), batch.targets).item<double>();
    expected += mean * static_cast<double>(batch.valid_rows) / 7;
  }
  for (int world : {1, 2, 3, 4}) {
    comm::run_ranks_as_threads(world, [&](comm::Communicator& communicator) {
      auto model = testing::make_initialized(config.model);
      auto engine = shard::fully_shard(*model, config.fsdp, testing::borrowed(communicator));
      data::ValidationLoader loader(config.data, config.model.vocab_size, 7, {communicator.rank(), world});
      const Validation validation = *validate(*model, loader, communicator);
      EXPECT_NEAR(validation.loss, expected, 1e-6) << world;
      EXPECT_NEAR(validation.perplexity(), std::exp(expected), 1e-5);
      EXPECT_EQ(validation.samples, 7);
      EXPECT_EQ(validation.tokens, 7 * config.data.sequence_length);
      EXPECT_FALSE(validation.bits_per_byte().has_value());
      EXPECT_EQ(engine->live_unsharded_bytes(), 0);
    });
  }
}

TEST(ValidationLoss, OfWeightsThatAreNotFiniteIsADivergence) {
  testing::TemporaryFolder folder;
  config::Config config = testing::tiny_config(folder);
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    auto model = testing::make_initialized(config.model);
    auto engine = shard::fully_shard(*model, config.fsdp, testing::borrowed(communicator));
    const data::ValidationLoader loader(config.data, config.model.vocab_size, 7, {communicator.rank(), 2});
    require_finite(*validate(*model, loader, communicator), "validation at step 3");
    for (const auto& unit : engine->units()) unit->storage().shard().fill_(std::nan(""));
    try {
      require_finite(*validate(*model, loader, communicator), "validation at step 3");
      ADD_FAILURE() << "went on";
    } catch (const comm::AgreedError& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kDiverged);
      const std::string text = error.what();
      EXPECT_NE(text.find("validation at step 3: expected a finite loss, found nan over 7 samples"),
                std::string::npos)
          << text;
    }
  });
}

/// Token i stands for i bytes, but the last for none.
class Lengths final : public data::Tokenizer {
 public:
  explicit Lengths(int64_t size) : size_(size) {}
  std::string name() const override { return "lengths"; }
  int64_t vocab_size() const override { return size_; }
  void encode(std::string_view, std::vector<int64_t>&) const override {}
  size_t encode_some(std::string_view, size_t, std::vector<int64_t>&) const override { return 0; }
  size_t likely_cut(std::string_view) const override { return 0; }
  std::optional<std::string> bytes_of(int64_t id, bool) const override {
    if (id == size_ - 1) return std::nullopt;
    return std::string(static_cast<size_t>(id), 'x');
  }

 private:
  int64_t size_;
};

TEST(Validation, CountsTheBytesOfTheTokensThatCount) {
  testing::TemporaryFolder folder;
  config::Config config = testing::tiny_config(folder);
  const int64_t vocabulary = config.model.vocab_size;
  data::ValidationLoader all(config.data, vocabulary, 7, {});
  int64_t bytes = 0;
  for (int64_t i = 0; i < all.num_batches(); ++i) {
    data::Batch batch = all.batch(i);
    at::Tensor targets = batch.targets.narrow(0, 0, batch.valid_rows);
    bytes += targets.masked_fill(targets == vocabulary - 1, 0).sum().item<int64_t>();
  }
  ASSERT_GT(bytes, 0);
  const data::TokenBytes lengths(Lengths{vocabulary}), fewer(Lengths{vocabulary / 2});
  for (int world : {1, 3}) {
    comm::run_ranks_as_threads(world, [&](comm::Communicator& communicator) {
      auto model = testing::make_initialized(config.model);
      auto engine = shard::fully_shard(*model, config.fsdp, testing::borrowed(communicator));
      data::ValidationLoader loader(config.data, vocabulary, 7, {communicator.rank(), world});
      const Validation validation = *validate(*model, loader, communicator, {.bytes = &lengths});
      EXPECT_EQ(validation.bytes, bytes);
      EXPECT_NEAR(*validation.bits_per_byte(),
                  validation.loss * static_cast<double>(validation.tokens) / std::log(2.0) /
                      static_cast<double>(bytes),
                  1e-9);
      // Tokens that this tokenizer does not have: the text is not known.
      EXPECT_EQ(validate(*model, loader, communicator, {.bytes = &fewer})->bytes, std::nullopt);
    });
  }
}

TEST(Validation, CountsTheTokensThatTheModelFindsLikeliest) {
  testing::TemporaryFolder folder;
  config::Config config = testing::tiny_config(folder);
  auto plain = testing::make_initialized(config.model);
  data::ValidationLoader whole(config.data, config.model.vocab_size, 7, {});
  int64_t correct = 0;
  for (int64_t i = 0; i < whole.num_batches(); ++i) {
    const data::Batch batch = whole.batch(i);
    at::NoGradGuard no_grad;
    const at::Tensor scores = plain->forward(batch.inputs);
    for (int64_t row = 0; row < batch.valid_rows; ++row) {
      for (int64_t at = 0; at < config.data.sequence_length; ++at) {
        const bool hit = scores[row][at].argmax().item<int64_t>() == batch.targets[row][at].item<int64_t>();
        correct += hit ? 1 : 0;
      }
    }
  }
  const double expected = static_cast<double>(correct) / static_cast<double>(7 * config.data.sequence_length);
  for (int world : {1, 3}) {
    comm::run_ranks_as_threads(world, [&](comm::Communicator& communicator) {
      auto model = testing::make_initialized(config.model);
      auto engine = shard::fully_shard(*model, config.fsdp, testing::borrowed(communicator));
      data::ValidationLoader loader(config.data, config.model.vocab_size, 7, {communicator.rank(), world});
      const Validation counted = *validate(*model, loader, communicator, {.accuracy = true});
      EXPECT_DOUBLE_EQ(*counted.accuracy, expected) << world;
      const Validation plain_loss = *validate(*model, loader, communicator);
      EXPECT_NEAR(counted.loss, plain_loss.loss, 1e-6);
      EXPECT_FALSE(plain_loss.accuracy.has_value());
    });
  }
}

TEST(Validation, IsWrittenWithWhatIsKnown) {
  Validation validation{.loss = 2, .samples = 3, .tokens = 24, .bytes = std::nullopt};
  EXPECT_EQ(validation_text(validation), "loss 2.0000, perplexity 7.39 over 3 samples");
  validation.bytes = 48;
  EXPECT_EQ(validation_text(validation), "loss 2.0000, perplexity 7.39, 1.4427 bits per byte over 3 samples");
  validation.accuracy = 0.25;
  EXPECT_EQ(validation_text(validation),
            "loss 2.0000, perplexity 7.39, 1.4427 bits per byte, accuracy 25.00 % over 3 samples");
}

TEST(TokenBytes, AreLeftOutWithAWarningWhereThereIsNoTokenizer) {
  std::string warning;
  util::set_log_sink([&](util::LogLevel, std::string_view line) { warning = line; });
  config::Config config;
  EXPECT_NE(token_bytes(config, true), nullptr);
  config.data.tokenizer = "/nowhere/tokenizer.json";
  EXPECT_EQ(token_bytes(config, true), nullptr);
  util::set_log_sink({});
  EXPECT_NE(warning.find("/nowhere/tokenizer.json"), std::string::npos) << warning;
}

ValidationHistory history(int64_t patience, double min_delta = 0) {
  config::EvaluationOptions options;
  options.patience = patience;
  options.min_delta = min_delta;
  return ValidationHistory(options);
}

TEST(ValidationHistory, KnowsTheBest) {
  ValidationHistory validations = history(0);
  EXPECT_FALSE(validations.best().has_value());
  EXPECT_TRUE(validations.add(10, 3.0));
  EXPECT_FALSE(validations.add(20, 3.0));
  EXPECT_TRUE(validations.add(30, 2.5));
  EXPECT_FALSE(validations.add(40, NAN));
  EXPECT_EQ(validations.best()->step, 30);
  EXPECT_EQ(validations.best()->value, 2.5);
  EXPECT_FALSE(validations.patience_is_over());
}

TEST(ValidationHistory, LosesPatienceAfterSoManyInARow) {
  ValidationHistory validations = history(2);
  validations.add(1, 3.0);
  validations.add(2, 3.5);
  EXPECT_FALSE(validations.patience_is_over());
  validations.add(3, 2.9);
  validations.add(4, 3.0);
  EXPECT_FALSE(validations.patience_is_over());
  validations.add(5, INFINITY);
  EXPECT_TRUE(validations.patience_is_over());
}

TEST(ValidationHistory, TakesALittleForNothing) {
  ValidationHistory validations = history(1, 0.1);
  EXPECT_TRUE(validations.add(1, 3.0));
  EXPECT_FALSE(validations.add(2, 2.95));
  EXPECT_TRUE(validations.patience_is_over());
  EXPECT_EQ(validations.best()->step, 1);
}

TEST(ValidationHistory, GoesOnFromItsState) {
  ValidationHistory validations = history(3), resumed = history(3), anew = history(3);
  validations.add(1, 0.1 + 0.2);
  validations.add(2, 5);
  resumed.set_state(nlohmann::json::parse(validations.state().dump()));
  EXPECT_EQ(resumed.best()->value, 0.1 + 0.2);
  EXPECT_EQ(resumed.not_better_in_a_row(), 1);
  anew.set_state(history(3).state());
  EXPECT_FALSE(anew.best().has_value());
  EXPECT_THROW(anew.set_state({{"best", 3}}), nlohmann::json::exception);
}

TEST(ValidationHistory, ComparesByTheMetricOfTheConfig) {
  config::EvaluationOptions options;
  options.min_delta = 0.05;
  options.best_metric = "validation_accuracy";
  ValidationHistory higher(options);
  EXPECT_TRUE(higher.add(1, 0.4));
  EXPECT_FALSE(higher.add(2, 0.42)) << "by less than min_delta";
  EXPECT_FALSE(higher.add(3, 0.1));
  EXPECT_TRUE(higher.add(4, 0.5));
  EXPECT_EQ(higher.best()->value, 0.5);
  options.best_metric = "grad_norm";
  ValidationHistory lower(options);
  EXPECT_TRUE(lower.add(1, 0.4));
  EXPECT_FALSE(lower.add(2, 0.5));
}

TEST(ValidationHistory, ForgetsTheBestOfAnotherMetric) {
  config::EvaluationOptions options;
  options.patience = 3;
  ValidationHistory by_loss(options);
  by_loss.add(1, 2.0);
  by_loss.add(2, 3.0);
  options.best_metric = "validation_perplexity";
  ValidationHistory by_perplexity(options);
  by_perplexity.set_state(by_loss.state());
  EXPECT_FALSE(by_perplexity.best().has_value());
  EXPECT_EQ(by_perplexity.not_better_in_a_row(), 0);
  EXPECT_EQ(by_perplexity.validated_at(), 2) << "the step is not validated again";
}

TEST(ValidationHistory, ReadsTheStateOfOlderVersions) {
  const nlohmann::json state = {
      {"not_better_in_a_row", 2}, {"validated_at", 30}, {"best", {{"step", 10}, {"loss", 1.5}}}};
  ValidationHistory by_loss = history(3);
  by_loss.set_state(state);
  EXPECT_EQ(by_loss.best()->value, 1.5);
  EXPECT_EQ(by_loss.not_better_in_a_row(), 2);
}

TEST(BestMetric, IsTakenFromTheValidationOrTheStep) {
  Validation validation{.loss = 2, .samples = 3, .tokens = 24, .bytes = 48, .accuracy = 0.25};
  const auto value = [&](config::BestMetric metric) {
    return best_metric_value(metric, validation, /*loss=*/1.5, /*grad_norm=*/0.5);
  };
  using Metric = config::BestMetric;
  EXPECT_EQ(value(Metric::kValidationLoss), 2);
  EXPECT_EQ(value(Metric::kValidationPerplexity), std::exp(2.0));
  EXPECT_EQ(value(Metric::kValidationBitsPerByte), *validation.bits_per_byte());
  EXPECT_EQ(value(Metric::kValidationAccuracy), 0.25);
  EXPECT_EQ(value(Metric::kLoss), 1.5);
  EXPECT_EQ(value(Metric::kGradNorm), 0.5);
  validation.bytes.reset();
  EXPECT_TRUE(std::isnan(value(Metric::kValidationBitsPerByte)));
}

}  // namespace
}  // namespace fsdp::train
