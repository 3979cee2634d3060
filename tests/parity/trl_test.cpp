// 20 steps of each objective of preferences against TRL's trainers, from committed tables (trl_reference.py).

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <ostream>
#include <sstream>
#include <tuple>

#include "base/util/log.h"
#include "comm/threads/thread_communicator.h"
#include "run/train/reference_log_probs.h"
#include "run/train/trainer.h"
#include "setup/config/load.h"
#include "support/sharded_run.h"
#include "support/tiny_config.h"
#include "support/trl_models.h"

namespace fsdp::parity {
namespace {

/// Columns of a table by name.
using TrlTable = std::map<std::string, std::vector<double>>;

TrlTable read_trl_table(const std::string& name) {
  std::istringstream lines(util::read_file(testing::source_folder() + "/tests/parity/trl_" + name + ".txt"));
  std::vector<std::string> names;
  TrlTable table;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    if (line.starts_with("# step ")) {
      words >> word;
      while (words >> word) names.push_back(word);
    } else if (!line.starts_with('#')) {
      for (const std::string& column : names) {
        words >> word;
        table[column].push_back(std::stod(word));
      }
    }
  }
  EXPECT_EQ(table["step"].size(), 20u) << name;
  return table;
}

/// Largest differences from a table.
struct TrlDifference {
  double loss = 0, rewards = 0, log_probs = 0, norm = 0;  ///< that of the norm is relative

  void add(const std::string& column, double found, double expected) {
    const double apart = std::abs(found - expected);
    double& worst = column == "loss" || column == "nll_loss" ? loss
                    : column == "grad_norm"                  ? norm
                    : column.starts_with("logps/")           ? log_probs
                                                             : rewards;
    worst = std::max(worst, column == "grad_norm" ? apart / std::abs(expected) : apart);
  }
};

/// A table and the settings that it corresponds to. "FOLDER" stands for that of the models.
struct TrlCase {
  std::string table;
  std::vector<std::string> settings;
  bool stores_reference = false;  ///< of preference.reference_model in `settings`, if that is given
};

std::vector<TrlCase> trl_cases() {
  const std::vector<std::string> lora = {"training.objective=dpo", "lora.rank=4", "lora.alpha=8",
                                         "lora.targets=[\"*q_proj\", \"*v_proj\"]"};
  const auto with = [](std::vector<std::string> settings, const std::vector<std::string>& more) {
    settings.insert(settings.end(), more.begin(), more.end());
    return settings;
  };
  const auto of = [&](const std::string& objective, const std::vector<std::string>& more = {}) {
    return with({"training.objective=" + objective}, more);
  };
  const std::string other = "preference.reference_model=FOLDER/reference";
  const std::vector<std::string> smoothed = {"preference.label_smoothing=0.1"};
  return {{"dpo", of("dpo")},
          {"dpo_beta", of("dpo", {"preference.beta=0.5"})},
          {"dpo_reference", of("dpo", {other})},
          {"dpo_precomputed", of("dpo"), true},
          {"dpo_precomputed_reference", of("dpo", {other}), true},
          {"dpo_lora", with(lora, {"lora.init_from=FOLDER/adapter", "preference.reference=base"})},
          {"dpo_lora_trained",
           with(lora, {"lora.init_from=FOLDER/trained_adapter", "preference.reference_model=FOLDER/merged"})},
          {"dpo_norm", of("dpo", {"preference.length_normalised=true"})},
          {"robust", of("robust", smoothed)},
          {"hinge", of("hinge")},
          {"hinge_beta", of("hinge", {"preference.beta=0.04"})},
          {"ipo", of("ipo")},
          {"exo_pair", of("exo_pair", smoothed)},
          {"apo_zero", of("apo_zero")},
          {"apo_down", of("apo_down")},
          {"orpo", of("orpo")},
          {"simpo", of("simpo")},
          {"simpo_smoothed", of("simpo", smoothed)},
          {"cpo", of("cpo")},
          {"cpo_smoothed", of("cpo", smoothed)},
          {"kto", of("kto", {"preference.exchanged_rows=4"})},
          {"kto_weighted", of("kto", {"preference.exchanged_rows=4", "preference.desirable_weight=1.5",
                                      "preference.undesirable_weight=0.7"})},
          {"kto_reference", of("kto", {"preference.exchanged_rows=4", other})}};
}

TrlCase trl_case(const std::string& table) {
  for (const TrlCase& each : trl_cases()) {
    if (each.table == table) return each;
  }
  throw std::logic_error(table);
}

class Trl : public ::testing::Test {
 protected:
  void SetUp() override { util::set_log_level(util::LogLevel::kOff); }
  void TearDown() override { util::set_log_level(util::LogLevel::kInfo); }

  void make_models(const std::string& kind) {
    testing::TrlModel(kind).write_all(folder_.path());
    data::write_answers(folder_, "pairs.bin", testing::trl_answers());
  }

  config::Config config_of(std::vector<std::string> settings) const {
    for (std::string& setting : settings) {
      if (const size_t at = setting.find("FOLDER"); at != std::string::npos)
        setting.replace(at, 6, folder_.path().string());
    }
    return config::parse_config(testing::trl_config(folder_.path()), "trl.toml", settings);
  }

  /// Trains, and returns the differences from the table.
  TrlDifference train(const std::string& table, const TrlCase& given, int ranks,
                      const std::vector<std::string>& more = {}) {
    std::vector<std::string> settings = given.settings;
    settings.insert(settings.end(), more.begin(), more.end());
    if (given.stores_reference) {
      const config::Config computed = config_of(settings);
      comm::run_ranks_as_threads(ranks, [&](comm::Communicator& communicator) {
        train::write_reference_log_probs(computed, testing::borrowed(communicator));
      });
      std::erase_if(settings,
                    [](const std::string& name) { return name.starts_with("preference.reference_model="); });
      settings.emplace_back("preference.reference=stored");
    }
    const config::Config config = config_of(settings);
    std::filesystem::remove_all(config.run.output_dir);
    comm::run_ranks_as_threads(ranks, [&](comm::Communicator& communicator) {
      train::Trainer(config, testing::borrowed(communicator), {}).run();
    });
    TrlDifference difference;
    const TrlTable expected = read_trl_table(table);
    for (const auto& [column, numbers] : expected) {
      // TRL reports the cross entropy also where its weight is 0.
      if (column == "nll_loss" && config.training.objective == "simpo") continue;
      const auto found = testing::values_of(config.run.output_dir + "/metrics.jsonl", column);
      EXPECT_EQ(found.size(), numbers.size()) << column;
      for (size_t i = 0; i < std::min(found.size(), numbers.size()); ++i) {
        // Merged weights differ from weight and adapter by rounding, which breaks ties of the first step.
        const bool is_tie = column == "rewards/accuracies" && expected.at("rewards/margins")[i] == 0;
        if (is_tie && given.table == "dpo_lora_trained") continue;
        difference.add(column, found[i], numbers[i]);
      }
    }
    return difference;
  }

  static void expect_within(const std::string& name, const TrlDifference& difference,
                            const TrlDifference& most) {
    std::cout << name << ": largest differences of losses " << difference.loss << ", rewards "
              << difference.rewards << ", log-probabilities " << difference.log_probs
              << ", gradient norms (relative) " << difference.norm << std::endl;
    EXPECT_LE(difference.loss, most.loss) << name;
    EXPECT_LE(difference.rewards, most.rewards) << name;
    EXPECT_LE(difference.log_probs, most.log_probs) << name;
    EXPECT_LE(difference.norm, most.norm) << name;
  }

  testing::TemporaryFolder folder_;
};

/// Sums over an answer are up to 90, and differ by 5e-5; rewards are these times beta, up to 0.5.
constexpr TrlDifference kMost = {.loss = 1e-5, .rewards = 2e-5, .log_probs = 1e-4, .norm = 1e-4};

class TrlTables : public Trl, public ::testing::WithParamInterface<std::tuple<std::string, TrlCase>> {};

std::ostream& operator<<(std::ostream& out, const TrlCase& given) { return out << given.table; }

TEST_P(TrlTables, AreThoseOfOurs) {
  const auto& [kind, given] = GetParam();
  make_models(kind);
  const std::string table = kind + "_" + given.table;
  expect_within(table, train(table, given, /*ranks=*/1), kMost);
}

INSTANTIATE_TEST_SUITE_P(
    All, TrlTables, ::testing::Combine(::testing::Values("llama", "qwen3"), ::testing::ValuesIn(trl_cases())),
    [](const auto& info) { return std::get<0>(info.param) + "_" + std::get<1>(info.param).table; });

/// A way of dividing the work. micro_batch: rows of a rank in a micro-batch.
struct TrlLayout {
  std::string name;
  int ranks;
  std::vector<std::string> settings;
  bool exchanges = true;  ///< whether KTO's micro-batches have the same rows
};

std::ostream& operator<<(std::ostream& out, const TrlLayout& layout) { return out << layout.name; }

class TrlOnRanks : public Trl, public ::testing::WithParamInterface<TrlLayout> {};

TEST_P(TrlOnRanks, GivesTheSameNumbers) {
  make_models("qwen3");
  const TrlLayout& layout = GetParam();
  const bool shares_model =
      layout.name == "Model";  // adapters are not divided among the ranks of the axis model
  for (const char* name : {"dpo", "dpo_precomputed_reference", "dpo_lora", "ipo", "orpo", "simpo", "cpo",
                           "kto", "kto_reference"}) {
    const std::string table = name;
    if (table.starts_with("kto") && !layout.exchanges) continue;
    if (table == "dpo_lora" && shares_model) continue;
    expect_within(concat(table, " ", layout.name),
                  train("qwen3_" + table, trl_case(table), layout.ranks, layout.settings), kMost);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, TrlOnRanks,
    ::testing::Values(
        TrlLayout{"Two", 2, {"data.micro_batch_size=2"}}, TrlLayout{"Four", 4, {"data.micro_batch_size=1"}},
        TrlLayout{"ShardGradOp", 2, {"data.micro_batch_size=2", "fsdp.strategy=shard_grad_op"}},
        TrlLayout{"Hybrid",
                  4,
                  {"data.micro_batch_size=1", "fsdp.strategy=hybrid_shard", "mesh.dcn=2", "mesh.data=2"}},
        TrlLayout{"PerParameter", 2, {"data.micro_batch_size=2", "fsdp.layout=per_parameter"}},
        TrlLayout{"Context", 2, {"mesh.data=1", "mesh.context=2"}},
        TrlLayout{"Model", 2, {"mesh.data=1", "mesh.model=2"}},
        TrlLayout{"Accumulation",
                  1,
                  {"data.micro_batch_size=2", "training.gradient_accumulation_steps=2"},
                  /*exchanges=*/false},
        TrlLayout{"AccumulationOnTwo",
                  2,
                  {"data.micro_batch_size=1", "training.gradient_accumulation_steps=2"},
                  /*exchanges=*/false},
        TrlLayout{"CpuOffload", 2, {"data.micro_batch_size=2", "fsdp.cpu_offload=true"}},
        TrlLayout{"Recomputed", 2, {"data.micro_batch_size=2", "activation_checkpointing.mode=full"}}),
    [](const auto& info) { return info.param.name; });

// What a table does not have must not pass for it.
TEST_F(Trl, OtherSettingsGiveOtherNumbers) {
  make_models("qwen3");
  const auto expect_apart = [&](const std::string& table, const TrlCase& other,
                                const std::vector<std::string>& more = {}) {
    const TrlDifference difference = train("qwen3_" + table, other, /*ranks=*/1, more);
    EXPECT_GT(std::max(difference.loss, difference.rewards), 100 * kMost.loss) << table;
  };
  expect_apart("dpo_reference", trl_case("dpo"));
  expect_apart("dpo_precomputed_reference", trl_case("dpo_precomputed"));
  expect_apart("dpo", trl_case("dpo_beta"));
  expect_apart("dpo_norm", trl_case("dpo"));
  expect_apart("robust", {"", {"training.objective=robust"}});
  expect_apart("simpo", trl_case("simpo"), {"preference.simpo_gamma=0.6"});
  expect_apart("simpo_smoothed", trl_case("simpo"));
  expect_apart("cpo", trl_case("cpo"), {"preference.cpo_alpha=0.9"});
  expect_apart("kto", {"", {"training.objective=kto"}});  // answers exchanged among all rows
  expect_apart("kto_weighted", trl_case("kto"));
  expect_apart("dpo_lora_trained", {"", trl_case("dpo_lora_trained").settings},
               {"preference.reference_model=FOLDER/model"});
}

}  // namespace
}  // namespace fsdp::parity
