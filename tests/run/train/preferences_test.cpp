// Runs with objectives of preferences: their metrics, validations, ends, resumption and references. Their
// losses are compared with TRL's in tests/parity.

#include "model/nn/preferences.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <set>
#include <sstream>

#include "model/families/objectives.h"
#include "run/train/evaluate.h"
#include "run/train/reference_log_probs.h"
#include "setup/config/load.h"
#include "support/log_lines.h"
#include "support/trainer_fixture.h"
#include "support/trl_models.h"

namespace fsdp::train {
namespace {

using ::testing::HasSubstr;
using testing::metrics_with;
using ::testing::Not;
using testing::values_of;
namespace fs = std::filesystem;

class PreferenceRun : public TrainerTest {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    testing::TrlModel("qwen3").write_all(folder_.path());
    // 15 pairs to train on, and 5 to validate: no number of ranks divides them.
    const std::vector<data::Answer> answers = testing::trl_answers();
    data::write_answers(folder_, "pairs.bin", {answers.begin(), answers.begin() + 30});
    data::write_answers(folder_, "validation_pairs.bin", {answers.begin() + 30, answers.end()});
  }

  config::Config config_of(const std::string& objective, std::vector<std::string> settings = {}) {
    settings.insert(settings.begin(),
                    {"training.objective=" + objective, "training.steps=6", "checkpoint.save_at_end=true",
                     "evaluation.interval_steps=3", "data.validation=[\"FOLDER/validation_pairs.bin\"]"});
    for (std::string& setting : settings) {
      if (const size_t at = setting.find("FOLDER"); at != std::string::npos)
        setting.replace(at, 6, folder_.path().string());
    }
    return config::parse_config(testing::trl_config(folder_.path()), "c.toml", settings);
  }
  std::vector<nlohmann::json> validations(const std::string& folder = "out") const {
    return metrics_with(folder_ / folder / "metrics.jsonl", "validation_loss");
  }
  std::vector<double> column(const std::string& name, const std::string& folder = "out") const {
    return values_of(folder_ / folder / "metrics.jsonl", name);
  }
  Evaluation evaluated(const config::Config& config, int ranks, const fs::path& weights) {
    Evaluation evaluation;
    comm::run_ranks_as_threads(ranks, [&](comm::Communicator& communicator) {
      Evaluation mine = evaluate(config, testing::borrowed(communicator), weights);
      if (communicator.rank() == 0) evaluation = std::move(mine);
    });
    return evaluation;
  }
};

TEST_F(PreferenceRun, ReportsTheMetricsOfItsObjective) {
  const std::set<std::string> of_pairs = {"rewards/chosen",  "rewards/rejected", "rewards/accuracies",
                                          "rewards/margins", "logps/chosen",     "logps/rejected"};
  std::set<std::string> of_labels = of_pairs, with_entropy = of_pairs;
  of_labels.erase("rewards/accuracies");
  of_labels.insert("kl");
  with_entropy.insert("nll_loss");
  const std::vector<std::pair<std::string, std::set<std::string>>> cases = {{"dpo", of_pairs},
                                                                            {"simpo", of_pairs},
                                                                            {"orpo", with_entropy},
                                                                            {"cpo", with_entropy},
                                                                            {"kto", of_labels}};
  for (const auto& [objective, expected] : cases) {
    SCOPED_TRACE(objective);
    fs::remove_all(folder_ / "out");
    train(2, config_of(objective, {"data.micro_batch_size=2"}));
    const auto names_in = [](const nlohmann::json& line, const std::string& prefix) {
      std::set<std::string> names;
      for (const auto& [name, value] : line.items()) {
        if (name.starts_with("validation_") == prefix.empty()) continue;
        const std::string own = name.substr(prefix.size());
        if (own.find('/') != std::string::npos || own == "kl" || own == "nll_loss") names.insert(own);
      }
      return names;
    };
    const auto steps = metrics_with(folder_ / "out/metrics.jsonl", "loss");
    ASSERT_EQ(steps.size(), 6u);
    for (const auto& line : steps) EXPECT_EQ(names_in(line, ""), expected);
    ASSERT_EQ(validations().size(), 2u);
    for (const auto& line : validations()) {
      EXPECT_EQ(names_in(line, "validation_"), expected);
      EXPECT_FALSE(line.contains("validation_perplexity")) << "of no text";
    }
    for (const auto& line : steps) EXPECT_FALSE(line.contains("perplexity"));
  }
}

TEST_F(PreferenceRun, BeginsAtItsReference) {
  train(1, config_of("dpo"));
  EXPECT_NEAR(column("loss").front(), std::log(2.0), 1e-6);
  EXPECT_NEAR(column("rewards/chosen").front(), 0, 1e-6);
  EXPECT_EQ(column("rewards/margins").size(), 6u);
  EXPECT_GT(std::abs(column("rewards/margins").back()), 1e-3);
}

TEST_F(PreferenceRun, TablesAndEventsHaveTheMetricsToo) {
  train(1, config_of("dpo", {"logging.csv=true", "logging.tensorboard=true"}));
  std::istringstream lines(util::read_file(folder_ / "out/metrics.csv"));
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream cells(line);
    rows.emplace_back();
    for (std::string cell; std::getline(cells, cell, ',');) rows.back().push_back(cell);
  }
  const auto place = [&](const std::string& name) {
    const auto found = std::ranges::find(rows.front(), name);
    EXPECT_NE(found, rows.front().end()) << name;
    return static_cast<size_t>(found - rows.front().begin());
  };
  ASSERT_EQ(rows.size(), 1u + 6 + 2);
  const auto margins = column("rewards/margins"), of_validation = column("validation_rewards/accuracies");
  size_t steps = 0, validations = 0;
  for (size_t row = 1; row < rows.size(); ++row) {
    rows[row].resize(rows.front().size());
    const std::string &margin = rows[row][place("rewards/margins")],
                      &accuracy = rows[row][place("validation_rewards/accuracies")];
    EXPECT_NE(margin.empty(), accuracy.empty());
    if (!margin.empty()) {
      EXPECT_EQ(std::stod(margin), margins.at(steps++));
    } else {
      EXPECT_EQ(std::stod(accuracy), of_validation.at(validations++));
    }
  }
  EXPECT_EQ(steps, 6u);
  EXPECT_EQ(validations, 2u);
  std::string events;
  for (const auto& entry : fs::directory_iterator(folder_ / "out/tensorboard"))
    events += util::read_file(entry.path());
  EXPECT_THAT(events, HasSubstr("train/rewards/margins"));
  EXPECT_THAT(events, HasSubstr("validation/rewards/accuracies"));
}

TEST_F(PreferenceRun, LinesOfSeveralStepsHaveTheirMean) {
  train(1, config_of("dpo"));
  const std::vector<double> single = column("rewards/margins");
  fs::remove_all(folder_ / "out");
  train(1, config_of("dpo", {"logging.interval_steps=3"}));
  const std::vector<double> found = column("rewards/margins");
  ASSERT_EQ(found.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_NEAR(found[i], (single[3 * i] + single[3 * i + 1] + single[3 * i + 2]) / 3, 1e-12);
  }
}

TEST_F(PreferenceRun, ValidationsAreTheSameOnAnyNumberOfRanks) {
  for (const char* objective : {"dpo", "orpo", "simpo"}) {
    SCOPED_TRACE(objective);
    const config::Config config = config_of(objective, {"preference.beta=0.3"});
    fs::remove_all(folder_ / "out");
    train(1, config);
    config::Config weights = config;
    if (config.training.objective == "dpo") weights.preference.reference_model = folder_ / "model";
    const nlohmann::json expected = validations().back();
    for (const int ranks : {1, 2, 3}) {
      weights.data.micro_batch_size = ranks == 3 ? 1 : 2;
      const Validation found = *evaluated(weights, ranks, folder_ / "out").validation;
      EXPECT_EQ(found.samples, 5);
      EXPECT_FALSE(found.is_of_tokens);
      EXPECT_NEAR(found.loss, expected["validation_loss"].get<double>(), 1e-6);
      ASSERT_GE(found.of_objective.size(), 6u);
      for (const auto& [name, value] : found.of_objective) {
        EXPECT_NEAR(value, expected["validation_" + name].get<double>(), 1e-5) << name;
      }
    }
  }
}

TEST_F(PreferenceRun, HasTheSameBitsOnAnyNumberOfRanksBySample) {
  for (const char* objective : {"dpo", "orpo"}) {
    SCOPED_TRACE(objective);
    for (const int ranks : {1, 2, 4}) {
      const std::string folder = concat(objective, "_", ranks);
      train(ranks, config_of(objective, {"training.reproducible=world_size", "data.micro_batch_size=1",
                                         concat("training.gradient_accumulation_steps=", 4 / ranks),
                                         "run.output_dir=FOLDER/" + folder}));
      for (const char* name : {"loss", "grad_norm", "rewards/chosen", "rewards/margins", "validation_loss",
                               "validation_rewards/margins"}) {
        EXPECT_EQ(column(name, folder), column(name, concat(objective, "_1")))
            << name << ", " << ranks << " ranks";
        EXPECT_GE(column(name, folder).size(), 2u);
      }
    }
  }
}

TEST_F(PreferenceRun, EvaluatingNeedsTheWeightsThatAnswersAreComparedWith) {
  const config::Config config = config_of("dpo");
  train(1, config);
  try {
    evaluated(config, 2, folder_ / "out");
    ADD_FAILURE() << "expected an error";
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("preference.reference_model must name the weights"));
  }
  // Another reference gives other numbers.
  config::Config other = config;
  other.preference.reference_model = folder_ / "reference";
  config::Config own = config;
  own.preference.reference_model = folder_ / "model";
  EXPECT_GT(std::abs(evaluated(other, 1, folder_ / "out").validation->loss -
                     evaluated(own, 1, folder_ / "out").validation->loss),
            1e-3);
  EXPECT_THAT(evaluation_text(evaluated(own, 1, folder_ / "out")), HasSubstr(", rewards/accuracies "));
  EXPECT_THAT(evaluation_text(evaluated(own, 1, folder_ / "out")), Not(HasSubstr("perplexity")));
}

TEST_F(PreferenceRun, StoredNumbersReplaceTheReference) {
  for (const char* objective : {"dpo", "kto"}) {
    SCOPED_TRACE(objective);
    const config::Config computed = config_of(objective, {"preference.reference_model=FOLDER/reference"});
    fs::remove_all(folder_ / "out");
    train(1, computed);
    const std::vector<double> losses = column("loss"), rewards = column("rewards/chosen");
    const auto expected = validations();
    std::vector<fs::path> files;
    comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
      const auto written = write_reference_log_probs(computed, testing::borrowed(communicator));
      if (communicator.rank() == 0) files = written;
    });
    EXPECT_EQ(files, (std::vector<fs::path>{folder_ / "pairs.bin.reference",
                                            folder_ / "validation_pairs.bin.reference"}));
    fs::remove_all(folder_ / "out");
    const config::Config stored = config_of(objective, {"preference.reference=stored"});
    train(1, stored);
    const std::vector<double> found = column("loss"), found_rewards = column("rewards/chosen");
    ASSERT_EQ(found.size(), losses.size());
    for (size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(found[i], losses[i], 2e-6);
      EXPECT_NEAR(found_rewards[i], rewards[i], 2e-5);
    }
    EXPECT_NEAR(validations().back()["validation_loss"].get<double>(),
                expected.back()["validation_loss"].get<double>(), 2e-6);
    // Weights are evaluated without a reference model, also by a rank that lacks rows of the last batch.
    for (const int64_t rows : {2, 4}) {
      config::Config shared = stored;
      shared.data.micro_batch_size = rows;
      EXPECT_NEAR(evaluated(shared, 2, folder_ / "out").validation->loss,
                  expected.back()["validation_loss"].get<double>(), 1e-5)
          << rows;
    }
  }
}

TEST_F(PreferenceRun, NumbersAreStoredForObjectivesWithAReferenceOnly) {
  const auto refused = [&](const config::Config& config, const std::string& part) {
    try {
      comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
        write_reference_log_probs(config, testing::borrowed(communicator));
      });
      ADD_FAILURE() << "expected an error with " << part;
    } catch (const util::Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  };
  refused(config_of("simpo"), "training.objective must be one with a reference");
  config::Config random = config_of("dpo", {"preference.reference=stored"});
  random.model.init_from.clear();
  refused(random, "model.init_from must name the weights of the reference");
}

TEST_F(PreferenceRun, EndsEarlyWhenRewardsGetNoBetter) {
  config::Config config =
      config_of("dpo", {"training.steps=12", "evaluation.interval_steps=2", "evaluation.patience=2",
                        "evaluation.min_delta=100", "evaluation.best_metric=validation_rewards/accuracies"});
  const RunSummary ended = train(2, config);
  EXPECT_TRUE(ended.ended_early);
  EXPECT_EQ(ended.step, 6);
  EXPECT_EQ(ended.best->step, 2);
  EXPECT_EQ(ended.best->value, validations().front()["validation_rewards/accuracies"].get<double>());
}

TEST_F(PreferenceRun, HigherMarginsAreBetter) {
  // The pairs that are trained on, whose margins grow.
  const RunSummary whole =
      train(1, config_of("dpo", {"training.steps=10", "evaluation.interval_steps=5", "evaluation.patience=1",
                                 "evaluation.best_metric=validation_rewards/margins",
                                 "data.validation=[\"FOLDER/pairs.bin\"]"}));
  const auto margins = column("validation_rewards/margins");
  ASSERT_EQ(margins.size(), 2u);
  ASSERT_GT(margins[1], margins[0]);
  EXPECT_FALSE(whole.ended_early);
  EXPECT_EQ(whole.best->step, 10);
}

struct ResumedPreferences {
  std::string name, objective;
  std::vector<std::string> settings;
};

std::ostream& operator<<(std::ostream& out, const ResumedPreferences& given) { return out << given.name; }

class ResumedPreferenceRun : public PreferenceRun,
                             public ::testing::WithParamInterface<ResumedPreferences> {};

TEST_P(ResumedPreferenceRun, ContinuesAsIfUninterrupted) {
  const ResumedPreferences& given = GetParam();
  std::vector<std::string> settings = given.settings;
  settings.insert(settings.end(), {"training.steps=8", "data.micro_batch_size=2", "data.shuffle=true"});
  config::Config config = config_of(given.objective, settings);
  config.run.output_dir = folder_ / "undisturbed";
  train(2, config);
  config.run.output_dir = folder_ / "out";
  const RunSummary stopped = train_until(2, config, /*asked=*/3);
  EXPECT_TRUE(stopped.stopped);
  EXPECT_EQ(stopped.step, 3);
  train(2, config);
  for (const char* name : {"loss", "grad_norm", "rewards/chosen", "rewards/margins", "validation_loss"}) {
    EXPECT_EQ(column(name), column(name, "undisturbed")) << name;
    EXPECT_GE(column(name).size(), 2u);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, ResumedPreferenceRun,
    ::testing::Values(ResumedPreferences{"Dpo", "dpo", {}},
                      ResumedPreferences{
                          "OtherReference", "ipo", {"preference.reference_model=FOLDER/reference"}},
                      ResumedPreferences{"Adapters", "dpo", {"lora.rank=4"}},
                      ResumedPreferences{"Kto", "kto", {"preference.exchanged_rows=4"}},
                      ResumedPreferences{"Cpo", "cpo", {}}),
    [](const auto& info) { return info.param.name; });

TEST_F(PreferenceRun, WarnsOfPairsThatAreCutOrLeftOut) {
  util::set_log_level(util::LogLevel::kWarning);
  const std::string lines =
      testing::log_lines([&] { train(2, config_of("simpo", {"data.sequence_length=24"})); });
  EXPECT_THAT(lines, HasSubstr("pairs.bin: of 15 samples "));
  EXPECT_THAT(lines, HasSubstr(" documents are cut at data.sequence_length = 24"));
}

/// DPO by a function of the scores, as a plug-in has it.
void add_plain_dpo() {
  if (nn::objectives().find("plain_dpo") != nullptr) return;
  nn::objectives().add("plain_dpo",
                       {.rows = nn::ObjectiveRows::kPairs,
                        .has_reference = true,
                        .loss = [](const nn::CompletionScores& scores, const nn::PreferenceOptions& options,
                                   const util::PluginValues&) {
                          const auto [chosen, rejected] = nn::chosen_and_rejected(scores.relative());
                          return at::softplus(options.beta * (rejected - chosen));
                        }});
}

TEST_F(PreferenceRun, TrainsOnAnObjectiveOfAPlugIn) {
  add_plain_dpo();
  train(2, config_of("dpo", {"data.micro_batch_size=2"}));
  const std::vector<double> expected = column("loss"), margins = column("rewards/margins");
  fs::remove_all(folder_ / "out");
  config::Config plain = config_of("dpo", {"data.micro_batch_size=2"});
  plain.training.objective = "plain_dpo";
  train(2, plain);
  const std::vector<double> found = column("loss"), found_margins = column("rewards/margins");
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], 1e-6);
    EXPECT_NEAR(found_margins[i], margins[i], 1e-5);
  }
}

}  // namespace
}  // namespace fsdp::train
