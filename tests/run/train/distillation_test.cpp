// Runs with training.objective = "distill", compared with the tables of
// tests/parity/distillation_reference.py: a small llama learns from a qwen3 of the same vocabulary.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "base/util/file.h"
#include "model/nn/loss.h"
#include "run/train/evaluate.h"
#include "run/train/objective.h"
#include "run/train/reference_log_probs.h"
#include "run/train/run_parts.h"
#include "setup/config/load.h"
#include "shard/engine/engine.h"
#include "support/formula_weights.h"
#include "support/on_mesh.h"
#include "support/source_folder.h"
#include "support/trainer_fixture.h"

namespace fsdp::train {
namespace {

using testing::values_of;
namespace fs = std::filesystem;

constexpr int64_t kTableSteps = 12, kTableRows = 4, kTableLength = 32;

/// The tables, and the keys of [distillation] that each is of.
struct DistillationCase {
  std::string name;
  std::vector<std::string> keys;
};

std::ostream& operator<<(std::ostream& out, const DistillationCase& of) { return out << of.name; }

const std::vector<DistillationCase> kDistillationCases = {
    {"forward", {"beta=0.0"}},
    {"reverse", {"beta=1.0"}},
    {"jsd", {"beta=0.5"}},
    {"skewed", {"beta=0.1", "temperature=2.0"}},
    {"mixed", {"beta=0.0", "temperature=1.5", "alpha=0.7"}},
    {"top", {"beta=0.0", "top_k=16"}},
    {"top_jsd", {"beta=0.5", "top_k=16", "alpha=0.5"}},
};

struct DistillationTable {
  std::vector<double> losses, norms;
};

DistillationTable table_of_case(const DistillationCase& of) {
  DistillationTable table;
  std::istringstream lines(
      util::read_file(testing::source_folder() + "/tests/parity/distillation_" + of.name + ".txt"));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream numbers(line);
    double step = 0;
    numbers >> step >> table.losses.emplace_back() >> table.norms.emplace_back();
  }
  EXPECT_EQ(table.losses.size(), static_cast<size_t>(kTableSteps));
  return table;
}

/// Token i of the tables.
uint16_t token_of_tables(int64_t i) { return static_cast<uint16_t>(4 + (i * i * 7 + i * 3) % 123); }

class Distillation : public TrainerTest {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    write_tokens("tokens.bin", 0, kTableSteps * kTableRows * kTableLength + 1);
    write_tokens("validation.bin", 5000, 6 * kTableLength + 1);
    testing::write_formula_model(folder_ / "llama", "llama");
    testing::write_formula_model(folder_ / "qwen3", "qwen3");
  }

  void write_tokens(const std::string& name, int64_t first, int64_t count) const {
    std::ofstream file(folder_ / name, std::ios::binary);
    for (int64_t i = first; i < first + count; ++i) {
      const uint16_t id = token_of_tables(i);
      file.put(static_cast<char>(id & 255)).put(static_cast<char>(id >> 8));
    }
  }

  /// The config of a table, on this many ranks, each of which has its part of the rows.
  config::Config config_of(const DistillationCase& of, const std::vector<std::string>& more = {},
                           int64_t rows = kTableRows, const std::string& output = "out") const {
    std::vector<std::string> overrides = {"run.output_dir=" + (folder_ / output).string(),
                                          "model.init_from=" + (folder_ / "llama").string(),
                                          "data.train=[\"" + (folder_ / "tokens.bin").string() + "\"]",
                                          concat("data.sequence_length=", kTableLength),
                                          concat("data.micro_batch_size=", rows),
                                          "data.shuffle=false",
                                          concat("training.steps=", kTableSteps),
                                          "training.objective=distill",
                                          "distillation.teacher_model=" + (folder_ / "qwen3").string(),
                                          "optimizer.name=adamw",
                                          "optimizer.lr=1e-3",
                                          "optimizer.betas=[0.9, 0.999]",
                                          "optimizer.eps=1e-6",
                                          "optimizer.weight_decay=0.0",
                                          "lr_scheduler.name=constant",
                                          "fsdp.min_num_params=10000",
                                          "checkpoint.save_at_end=false",
                                          "logging.peak_tflops=1.0"};
    for (const std::string& key : of.keys) overrides.push_back("distillation." + key);
    overrides.insert(overrides.end(), more.begin(), more.end());
    return config::parse_config("[data]\n", "c.toml", overrides);
  }

  std::vector<double> metric(const std::string& key, const std::string& output = "out") const {
    return values_of(folder_ / output / "metrics.jsonl", key);
  }

  void expect_table(const DistillationCase& of, const std::string& what) const {
    const DistillationTable table = table_of_case(of);
    const std::vector<double> losses = metric("loss"), norms = metric("grad_norm");
    ASSERT_EQ(losses.size(), table.losses.size()) << what;
    for (size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(losses[i], table.losses[i], 1e-6) << what << ", step " << i + 1;
      EXPECT_NEAR(norms[i], table.norms[i], 1e-5 * table.norms[i]) << what << ", step " << i + 1;
    }
  }

  std::vector<fs::path> store(int ranks, const config::Config& config) {
    std::vector<fs::path> files;
    comm::run_ranks_as_threads(ranks, [&](comm::Communicator& communicator) {
      const auto mine = write_reference_log_probs(config, testing::borrowed(communicator));
      if (communicator.rank() == 0) files = mine;
    });
    return files;
  }

  void expect_store_refusal(int ranks, const config::Config& config, const std::string& text) {
    try {
      store(ranks, config);
      ADD_FAILURE() << "expected an error with \"" << text << '"';
    } catch (const util::Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  }
};

class DistillationOf : public Distillation, public ::testing::WithParamInterface<DistillationCase> {};

TEST_P(DistillationOf, IsThatOfThePyTorchLoop) {
  train(1, config_of(GetParam()));
  expect_table(GetParam(), GetParam().name);
}

INSTANTIATE_TEST_SUITE_P(Tables, DistillationOf, ::testing::ValuesIn(kDistillationCases),
                         [](const auto& info) { return info.param.name; });

TEST_F(Distillation, HasTheSameBitsOnAnyNumberOfRanksBySample) {
  const DistillationCase& of = kDistillationCases[4];
  const std::string by_sample = "training.reproducible=world_size";
  train(1, config_of(of, {by_sample}, kTableRows, "whole"));
  for (const int ranks : {1, 2, 4}) {
    const std::string output = concat("by_", ranks);
    train(ranks,
          config_of(of, {by_sample, concat("training.gradient_accumulation_steps=", kTableRows / ranks)},
                    /*rows=*/1, output));
    for (const char* name : {"loss", "grad_norm"})
      EXPECT_EQ(metric(name, output), metric(name, "whole")) << name;
  }
  EXPECT_EQ(metric("loss", "whole").size(), static_cast<size_t>(kTableSteps));
}

/// A way to compute the steps of the tables.
struct DistillationWay {
  std::string name;
  int ranks = 2;
  std::vector<std::string> keys;
  int64_t rows = kTableRows / 2;
};

std::ostream& operator<<(std::ostream& out, const DistillationWay& way) { return out << way.name; }

class DistillationBy : public Distillation, public ::testing::WithParamInterface<DistillationWay> {};

TEST_P(DistillationBy, AreThoseOfTheTables) {
  const DistillationWay& way = GetParam();
  for (const DistillationCase& of : {kDistillationCases[4], kDistillationCases[6]}) {
    fs::remove_all(folder_ / "out");
    train(way.ranks, config_of(of, way.keys, way.rows));
    expect_table(of, of.name);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ways, DistillationBy,
    ::testing::Values(
        DistillationWay{.name = "TwoRanks", .keys = {}},
        DistillationWay{.name = "FourRanks", .ranks = 4, .keys = {}, .rows = 1},
        DistillationWay{.name = "ShardGradOp", .keys = {"fsdp.strategy=shard_grad_op"}},
        DistillationWay{.name = "NoShard", .keys = {"fsdp.strategy=no_shard"}},
        DistillationWay{.name = "HybridShard",
                        .ranks = 4,
                        .keys = {"fsdp.strategy=hybrid_shard", "mesh.dcn=2"},
                        .rows = 1},
        DistillationWay{.name = "PerParameter", .keys = {"fsdp.layout=per_parameter"}},
        DistillationWay{.name = "Context", .keys = {"mesh.context=2"}, .rows = kTableRows},
        DistillationWay{.name = "ContextByGathering",
                        .ranks = 4,
                        .keys = {"mesh.context=2", "mesh.context_attention=gather"}},
        DistillationWay{
            .name = "Accumulated", .ranks = 1, .keys = {"training.gradient_accumulation_steps=2"}},
        DistillationWay{.name = "AccumulatedUnreduced",
                        .keys = {"training.gradient_accumulation_steps=2", "training.no_sync=true"},
                        .rows = 1},
        DistillationWay{.name = "Composed", .keys = {"training.fused_kernels=false"}},
        DistillationWay{.name = "Recomputed", .keys = {"activation_checkpointing.mode=full"}},
        DistillationWay{.name = "WithoutPrefetch", .keys = {"data.prefetch_batches=0"}}),
    [](const auto& info) { return info.param.name; });

TEST_F(Distillation, IsNearTheTableIn16Bits) {
  for (const char* type : {"bfloat16", "float16"}) {
    fs::remove_all(folder_ / "out");
    train(2, config_of(kDistillationCases[6], {concat("mixed_precision.param_dtype=", type)}, 2));
    const DistillationTable table = table_of_case(kDistillationCases[6]);
    const std::vector<double> losses = metric("loss");
    ASSERT_EQ(losses.size(), table.losses.size()) << type;
    for (size_t i = 0; i < losses.size(); ++i)
      EXPECT_NEAR(losses[i], table.losses[i], 1e-2 * table.losses[i]) << type << " " << i;
  }
}

TEST_F(Distillation, OfAStudentWithAdaptersLowersTheLoss) {
  for (const DistillationCase& of : {kDistillationCases[0], kDistillationCases[5]}) {
    fs::remove_all(folder_ / "out");
    train(2,
          config_of(of, {"lora.rank=8", "lora.alpha=16.0", "lora.targets=[\"*\"]", "optimizer.lr=1e-2"}, 2));
    const std::vector<double> losses = metric("loss");
    ASSERT_EQ(losses.size(), static_cast<size_t>(kTableSteps));
    EXPECT_NEAR(losses.front(), table_of_case(of).losses.front(), 1e-6) << "adapters change nothing at first";
    for (size_t i = kTableSteps - 3; i < kTableSteps; ++i)
      EXPECT_LT(losses[i], 0.75 * losses.front()) << of.name;
  }
}

TEST_F(Distillation, WithoutWeightIsTheCrossEntropyAndBalancesExperts) {
  const std::vector<std::string> keys = {"model.init_from=\"\"",
                                         "model.architecture=mixtral",
                                         "model.vocab_size=128",
                                         "model.hidden_size=48",
                                         "model.intermediate_size=64",
                                         "model.num_hidden_layers=2",
                                         "model.num_attention_heads=4",
                                         "model.num_key_value_heads=2",
                                         "model.max_position_embeddings=128",
                                         "model.num_experts=4",
                                         "model.initializer_range=0.2",
                                         "model.router_aux_loss_coef=0.5",
                                         "training.gradient_accumulation_steps=2",
                                         "training.steps=3"};
  train(2, config_of({"", {"alpha=0.0"}}, keys, 1));
  config::Config texts = config_of({"", {}}, keys, 1, "texts");
  texts.training.objective = "language_model";
  train(2, texts);
  std::vector<double> losses = metric("loss"), norms = metric("grad_norm");
  ASSERT_EQ(losses.size(), 3U);
  expect_near(losses, metric("loss", "texts"));
  expect_near(norms, metric("grad_norm", "texts"));
  std::vector<std::string> unbalanced = keys;
  unbalanced.push_back("model.router_aux_loss_coef=0.0");
  train(2, config_of({"", {"alpha=0.0"}}, unbalanced, 1, "unbalanced"));
  EXPECT_GT(losses.front(), metric("loss", "unbalanced").front() + 0.1);
}

TEST_F(Distillation, FromItselfHasNothingToLearn) {
  train(2, config_of(kDistillationCases[2],
                     {"distillation.teacher_model=" + (folder_ / "llama").string(), "training.steps=1"}, 2));
  EXPECT_LT(std::abs(metric("loss").front()), 1e-6);
  EXPECT_LT(metric("grad_norm").front(), 1e-5);
}

TEST_F(Distillation, OfStoredTokensIsThatOfTheTeacherInMemory) {
  for (const DistillationCase& of : {kDistillationCases[5], kDistillationCases[6]}) {
    for (int ranks : {1, 2}) {
      const int64_t rows = kTableRows / ranks;
      const std::string what = concat(of.name, ", ranks ", ranks);
      const auto files = store(ranks, config_of(of, {}, rows));
      ASSERT_EQ(files.size(), 1U);
      EXPECT_EQ(files.front(), folder_ / "tokens.bin.teacher");
      fs::remove_all(folder_ / "out");
      train(ranks, config_of(of, {}, rows));
      const std::vector<double> losses = metric("loss"), norms = metric("grad_norm");
      fs::remove_all(folder_ / "out");
      fs::rename(folder_ / "qwen3", folder_ / "hidden");  // the teacher is not read again
      train(ranks, config_of(of, {"distillation.teacher=stored"}, rows));
      fs::rename(folder_ / "hidden", folder_ / "qwen3");
      expect_table(of, what);
      EXPECT_EQ(metric("loss"), losses) << what;
      EXPECT_EQ(metric("grad_norm"), norms) << what;
    }
  }
}

TEST_F(Distillation, OfStoredTokensFollowsDocumentsAndShortRows) {
  const std::vector<std::vector<std::string>> ways = {
      {"data.documents=mask", "data.document_separator=50"},
      {"data.documents=split", "data.document_separator=50"},
      {"data.documents=split", "data.document_separator=50", "data.max_tokens=64"}};
  for (std::vector<std::string> keys : ways) {
    keys.insert(keys.end(), {"data.shuffle=true", "training.steps=5"});
    const std::string what = keys.front() + " " + keys.back();
    store(2, config_of(kDistillationCases[6], keys, 2));
    fs::remove_all(folder_ / "out");
    train(2, config_of(kDistillationCases[6], keys, 2));
    const std::vector<double> losses = metric("loss");
    fs::remove_all(folder_ / "out");
    keys.push_back("distillation.teacher=stored");
    train(2, config_of(kDistillationCases[6], keys, 2));
    const std::vector<double> stored = metric("loss");
    ASSERT_EQ(stored.size(), losses.size()) << what;
    for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(stored[i], losses[i], 2e-6) << what << " " << i;
  }
}

TEST_F(Distillation, OfStoredTokensNeedsThoseOfThisRun) {
  const config::Config config = config_of(kDistillationCases[5], {"distillation.teacher=stored"}, 2);
  EXPECT_EQ(failure(2, config, "tokens.bin.teacher, which does not exist; compute it with fsdp-train"),
            ErrorKind::kData);
  store(1, config_of(kDistillationCases[5]));
  EXPECT_EQ(failure(2,
                    config_of(kDistillationCases[5],
                              {"distillation.teacher=stored", "distillation.temperature=2.0"}, 2),
                    "is for temperature = 1.0, but the run has 2.0"),
            ErrorKind::kData);
  train(2, config);
}

TEST_F(Distillation, StoresTokensOnlyOfATeacherAndOfWholeSequences) {
  expect_store_refusal(2, config_of(kDistillationCases[0], {}, 2),
                       "distillation.teacher_model and distillation.top_k must be set");
  expect_store_refusal(2, config_of(kDistillationCases[5], {"mesh.context=2"}), "mesh.context must be 1");
  config::Config texts = config_of(kDistillationCases[5], {}, 2);
  texts.training.objective = "language_model";
  expect_store_refusal(2, texts, "training.objective must be one with a reference or a teacher");
  config::Config other = config_of(kDistillationCases[5], {}, 2);
  other.data.dataset = "other";
  expect_store_refusal(2, other, "data.dataset must be \"token_files\"");
}

TEST_F(Distillation, ResumesAsIfItHadNotStopped) {
  for (const std::string teacher : {"model", "stored"}) {
    const std::vector<std::string> keys = {"distillation.teacher=" + teacher, "checkpoint.interval_steps=4",
                                           "checkpoint.keep_last=0", "data.shuffle=true"};
    store(2, config_of(kDistillationCases[6], {}, 2));
    fs::remove_all(folder_ / "out");
    train(2, config_of(kDistillationCases[6], keys, 2));
    const std::vector<double> losses = metric("loss");
    ASSERT_EQ(losses.size(), static_cast<size_t>(kTableSteps));
    // A kill during step 8 leaves the checkpoint of step 4.
    fs::remove_all(folder_ / "out/step-00000008");
    fs::remove_all(folder_ / "out/step-00000012");
    ASSERT_TRUE(fs::exists(folder_ / "out/step-00000004"));
    train(2, config_of(kDistillationCases[6], keys, 2));
    EXPECT_EQ(metric("loss"), losses) << teacher;
  }
}

TEST_F(Distillation, ReportsTheCrossEntropyOfValidations) {
  const std::string validation = "data.validation=[\"" + (folder_ / "validation.bin").string() + "\"]";
  for (const std::string teacher : {"model", "stored"}) {
    // Tokens of the validation are neither stored nor needed.
    EXPECT_EQ(store(2, config_of(kDistillationCases[5], {validation}, 2)).size(), 1U);
    fs::remove_all(folder_ / "out");
    const std::vector<std::string> keys = {validation, "checkpoint.save_at_end=true",
                                           "evaluation.interval_steps=6"};
    std::vector<std::string> distills = keys;
    distills.push_back("distillation.teacher=" + teacher);
    const config::Config config = config_of(kDistillationCases[5], distills, 2);
    train(2, config);
    const std::vector<double> reported = metric("validation_loss"),
                              perplexities = metric("validation_perplexity");
    ASSERT_EQ(reported.size(), 2U);
    ASSERT_EQ(perplexities.size(), 2U);
    EXPECT_NEAR(perplexities.back(), std::exp(reported.back()), 1e-4 * perplexities.back());
    config::Config texts = config;
    texts.training.objective = "language_model";
    texts.data.teacher = {};
    for (const config::Config& how : {texts, config}) {
      const auto found = evaluate(how, std::make_shared<comm::SingleCommunicator>(), folder_ / "out");
      EXPECT_NEAR(found.validation->loss, reported.back(), 1e-5) << teacher;
    }
  }
}

TEST_F(Distillation, RefusesATeacherOfAnotherVocabularyOnEveryRank) {
  nlohmann::json larger = testing::formula_config("qwen3");
  larger["vocab_size"] = 130;
  fs::create_directories(folder_ / "larger");
  std::ofstream(folder_ / "larger/config.json") << larger.dump();
  testing::write_safetensors(
      folder_ / "larger/model.safetensors",
      testing::formula_weights(checkpoint::options_from_hugging_face(larger, "larger")));
  EXPECT_EQ(
      failure(2,
              config_of(kDistillationCases[0],
                        {"distillation.teacher_model=" + (folder_ / "larger").string()}, 2),
              "distillation.teacher_model must have the vocabulary of the model, whose model.vocab_size "
              "is 128, but"),
      ErrorKind::kUsage);
  EXPECT_EQ(failure(2,
                    config_of(kDistillationCases[0],
                              {"distillation.teacher_model=" + (folder_ / "none").string()}, 2),
                    "none"),
            ErrorKind::kCheckpoint);
}

TEST_F(Distillation, ShardsTheTeacherAndGathersAUnitAtATime) {
  for (const char* strategy : {"full_shard", "shard_grad_op"}) {
    const config::Config config = config_of(kDistillationCases[0], {concat("fsdp.strategy=", strategy)}, 2);
    testing::on_mesh({.dcn = 1, .data = 2}, [&](const comm::Mesh& mesh) {
      const auto teacher = build_second_model(config::second_model(config).value(), mesh);
      int64_t own = 0, all = 0;
      for (const auto& unit : teacher->engine->units()) own += unit->storage().shard().numel();
      for (const auto& [name, weight] : testing::formula_weights(
               checkpoint::options_from_hugging_face(testing::formula_config("qwen3"), "qwen3"))) {
        all += weight.numel();
      }
      EXPECT_GE(teacher->engine->units().size(), 3U);
      EXPECT_NEAR(static_cast<double>(own), static_cast<double>(all) / 2, 0.01 * static_cast<double>(all));
      const at::Tensor ids = at::arange(64, at::kLong).view({2, 32});
      const auto scores = nn::teacher_rows(*teacher->model, ids, {}, /*count=*/0, /*temperature=*/1);
      EXPECT_EQ(scores.logits.sizes(), (at::IntArrayRef{64, 128}));
      EXPECT_FALSE(scores.logits.requires_grad());
      EXPECT_EQ(teacher->engine->live_unsharded_bytes(), 0) << strategy;
      const auto likeliest = nn::teacher_rows(*teacher->model, ids, {}, /*count=*/5, /*temperature=*/1);
      EXPECT_EQ(likeliest.ids.sizes(), (at::IntArrayRef{64, 5}));
      EXPECT_FALSE(likeliest.logits.defined());
    });
  }
}

}  // namespace
}  // namespace fsdp::train
