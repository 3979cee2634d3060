#include "train/validation_history.h"

#include <gtest/gtest.h>

#include <cmath>

namespace fsdp::train {
namespace {

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
  EXPECT_EQ(validations.best()->loss, 2.5);
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
  EXPECT_EQ(resumed.best()->loss, 0.1 + 0.2);
  EXPECT_EQ(resumed.not_better_in_a_row(), 1);
  anew.set_state(history(3).state());
  EXPECT_FALSE(anew.best().has_value());
  EXPECT_THROW(anew.set_state({{"best", 3}}), nlohmann::json::exception);
}

}  // namespace
}  // namespace fsdp::train
