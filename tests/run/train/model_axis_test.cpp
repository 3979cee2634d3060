// Layers that the ranks of mesh.model have parts of: whole runs, which have to be those of one process.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "run/train/explain_step.h"
#include "setup/config/checks.h"
#include "support/mesh_runs.h"

namespace fsdp::train {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Change = std::function<void(config::Config&)>;

/// Eight query heads, so that eight ranks can have one each.
nn::ModelOptions options_of(const std::string& architecture = "llama") {
  nn::ModelOptions options = testing::tiny_options(architecture);
  options.vocab_size = 23;  // divides by no number of ranks
  options.hidden_size = 16;
  options.intermediate_size = 24;
  options.num_attention_heads = 8;
  options.num_key_value_heads = architecture == "llama" ? 2 : 8;
  options.initializer_range = 0.1;
  return options;
}

struct Model {
  std::string name;
  Change change;
};

std::vector<Model> models() {
  return {{"Llama", [](auto& config) { config.model = options_of(); }},
          {"Tied",
           [](auto& config) {
             config.model = options_of();
             config.model.tie_word_embeddings = true;
           }},
          {"Qwen2",
           [](auto& config) {
             config.model = options_of();
             config.model.qkv_bias = true;
           }},
          {"Gpt2", [](auto& config) {
             config.model = options_of("gpt2");
             config.model.tie_word_embeddings = true;
           }}};
}

struct RunWay {
  std::string name;
  comm::MeshOptions mesh;
  Change model;
  Change change = [](config::Config&) {};
};

std::ostream& operator<<(std::ostream& out, const RunWay& way) { return out << way.name; }

/// 1, 2, 4 and 8 ranks as dcn x data x context x model.
std::vector<comm::MeshOptions> factorisations() {
  std::vector<comm::MeshOptions> meshes;
  for (int64_t dcn : {1, 2, 4, 8}) {
    for (int64_t data : {1, 2, 4, 8}) {
      for (int64_t context : {1, 2, 4, 8}) {
        for (int64_t model : {1, 2, 4, 8}) {
          if (dcn * data * context * model > 8) continue;
          meshes.push_back({.dcn = dcn, .data = data, .context = context, .model = model});
        }
      }
    }
  }
  return meshes;
}

/// Every mesh, with one of the models each; with FSDP_TEST_ALL_MESHES, with all.
std::vector<RunWay> grid() {
  std::vector<RunWay> ways;
  const bool all = std::getenv("FSDP_TEST_ALL_MESHES") != nullptr;
  size_t turn = 0;
  for (const comm::MeshOptions& mesh : factorisations()) {
    const size_t chosen = turn++ % models().size();
    for (size_t i = 0; i < models().size(); ++i) {
      if (!all && i != chosen) continue;
      const std::string name = concat(mesh.dcn, "x", mesh.data, "x", mesh.context, "x", mesh.model, "Of");
      ways.push_back({name + models()[i].name, mesh, models()[i].change});
    }
  }
  return ways;
}

std::vector<RunWay> run_ways() {
  const Change llama = models().front().change, gpt2 = models().back().change;
  const comm::MeshOptions two = {.dcn = 1, .data = 1, .model = 2}, both = {.dcn = 1, .data = 2, .model = 2},
                          slices = {.dcn = 2, .data = 1, .context = 1, .model = 2},
                          four = {.dcn = 1, .data = 1, .context = 1, .model = 4};
  const auto whole = [](comm::MeshOptions mesh) {
    mesh.sequence_parallel = false;
    return mesh;
  };
  const auto float8 = [](Change model) -> Change {
    return [model](auto& config) {
      model(config);
      config.model.hidden_size = 64;
      config.model.intermediate_size = 96;
      config.model.num_key_value_heads = config.model.architecture == "llama" ? 4 : 8;
      config.mixed_precision.param_dtype = "bfloat16";
      config.training.float8 = "tensorwise";
    };
  };
  return {
      {"Whole", whole(two), llama},
      {"WholeFour", whole(four), llama},
      {"WholeGpt2", whole(both), gpt2},
      {"Hybrid", slices, llama, [](auto& config) { config.fsdp.strategy = "hybrid_shard"; }},
      {"GlobalOptimizer", slices, llama,
       [](auto& config) {
         config.fsdp.strategy = "hybrid_shard";
         config.fsdp.hybrid_optimizer = "global";
       }},
      {"NoShard", both, llama, [](auto& config) { config.fsdp.strategy = "no_shard"; }},
      {"ShardGradOp", both, gpt2, [](auto& config) { config.fsdp.strategy = "shard_grad_op"; }},
      {"Replicated", both, llama, [](auto& config) { config.fsdp.replicated_parameters = {"*norm*"}; }},
      {"PerParameter", both, llama, [](auto& config) { config.fsdp.layout = "per_parameter"; }},
      {"Composed", both, llama, [](auto& config) { config.training.fused_kernels = false; }},
      {"Accuracy", both, llama, [](auto& config) { config.evaluation.accuracy = true; }},
      {"Accumulated", both, llama,
       [](auto& config) {
         config.training.gradient_accumulation_steps = 2;
         config.training.no_sync = true;
       }},
      {"Documents", both, llama,
       [](auto& config) {
         config.data.documents = "mask";
         config.data.document_separator = 10;
       }},
      {"Dropout", four, gpt2,
       [](auto& config) {
         config.model.embedding_dropout = config.model.hidden_dropout = config.model.attention_dropout = 0.2;
       }},
      {"DropoutOfCutSequences",
       {.dcn = 1, .data = 1, .context = 2, .model = 2},
       gpt2,
       [](auto& config) { config.model.embedding_dropout = config.model.hidden_dropout = 0.2; }},
      {"DropoutOfCutLlama",
       {.dcn = 1, .data = 2, .context = 2, .model = 2},
       llama,
       [](auto& config) { config.model.hidden_dropout = 0.2; }},
      // The second of three ranks has tokens of both chunks.
      {"DropoutOfThirdsOfCutSequences",
       {.dcn = 1, .data = 1, .context = 2, .model = 3},
       gpt2,
       [](auto& config) {
         config.model.num_attention_heads = config.model.num_key_value_heads = 6;
         config.model.hidden_size = 18;
         config.data.sequence_length = 12;
         config.model.embedding_dropout = config.model.hidden_dropout = 0.2;
       }},
      {"Adamw", both, gpt2,
       [](auto& config) {
         config.optimizer.name = "adamw";
         config.optimizer.no_decay = {"*.bias", "*ln_*"};
       }},
      {"Muon", both, llama, [](auto& config) { config.optimizer.name = "muon"; }},
      {"MuonOfFour", four, gpt2, [](auto& config) { config.optimizer.name = "muon"; }},
      {"MuonNoShard", both, llama,
       [](auto& config) {
         config.optimizer.name = "muon";
         config.fsdp.strategy = "no_shard";
       }},
      {"Adafactor", both, llama, [](auto& config) { config.optimizer.name = "adafactor"; }},
      {"Lamb", four, llama, [](auto& config) { config.optimizer.name = "lamb"; }},
      {"Bf16", both, llama,
       [](auto& config) {
         config.mixed_precision.param_dtype = config.mixed_precision.reduce_dtype = "bfloat16";
       }},
      {"Float8", both, float8(llama), [](auto&) {}},
      {"Float8Gpt2", whole(both), float8(gpt2), [](auto&) {}},
      // A quarter of the keys and of the feed-forward is no multiple of 16: these layers stay in bf16.
      {"Float8OfFour", four, float8(llama), [](auto&) {}},
      {"Bf16OfGpt2", four, gpt2,
       [](auto& config) {
         config.mixed_precision.param_dtype = config.mixed_precision.reduce_dtype = "bfloat16";
       }},
  };
}

class ModelAxisRuns : public MeshRuns, public ::testing::WithParamInterface<RunWay> {
 protected:
  ModelAxisRuns() {
    rows_ = 8;
    config_.fsdp.min_num_params = 1000;
  }
};

TEST_P(ModelAxisRuns, TrainAsOneProcessDoes) {
  GetParam().model(config_);
  GetParam().change(config_);
  config::Config whole = on({.dcn = 1, .data = 1}, "one");
  whole.fsdp.strategy = "full_shard";
  whole.fsdp.hybrid_optimizer = "replicated";
  train(1, whole);
  train(ranks_of(GetParam().mesh), on(GetParam().mesh, "cut"));
  const bool exact = config_.mixed_precision.param_dtype == util::FloatType::kFloat32;
  EXPECT_LT(metric("one", "loss").back(), metric("one", "loss").front());
  expect_near("loss", exact ? 1e-6 : 2e-2);
  expect_near("grad_norm", exact ? 1e-5 : 0.1);
  expect_near("validation_loss", exact ? 1e-6 : 2e-2);
  expect_near("tokens", 0);
  if (config_.evaluation.accuracy) expect_near("validation_accuracy", 0);
  if (exact && config_.optimizer.name == "sgd") expect_near_weights(1e-5);
}

INSTANTIATE_TEST_SUITE_P(Meshes, ModelAxisRuns, ::testing::ValuesIn(grid()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Ways, ModelAxisRuns, ::testing::ValuesIn(run_ways()),
                         [](const auto& info) { return info.param.name; });

/// Ways of the same arithmetic.
std::vector<RunWay> equal_ways() {
  const comm::MeshOptions both = {.dcn = 1, .data = 2, .context = 1, .model = 2};
  const Change llama = models().front().change;
  return {
      {"Recomputed", both, llama, [](auto& config) { config.activation_checkpointing.mode = "full"; }},
      {"Selective", both, llama,
       [](auto& config) {
         config.activation_checkpointing.mode = "selective";
         config.activation_checkpointing.memory_budget = 0.6;
       }},
      {"Offloaded", both, llama, [](auto& config) { config.fsdp.cpu_offload = true; }},
      {"NotResharded", both, llama, [](auto& config) { config.fsdp.reshard_after_forward = false; }},
      {"WithoutPrefetch", both, llama,
       [](auto& config) {
         config.fsdp.forward_prefetch = "none";
         config.fsdp.backward_prefetch = "none";
       }},
      {"ReduceScatterGroup", both, llama, [](auto& config) { config.fsdp.reduce_scatter_group = true; }},
  };
}

class ModelAxisEqual : public ModelAxisRuns {};

TEST_P(ModelAxisEqual, BitForBitAsWithout) {
  GetParam().model(config_);
  const config::Config plain = on(GetParam().mesh, "plain");
  GetParam().change(config_);
  const int ranks = ranks_of(GetParam().mesh);
  train(ranks, plain);
  train(ranks, on(GetParam().mesh, "changed"));
  expect_near("loss", 0, "plain", "changed");
  expect_near_weights(0, "plain", "changed");
}

INSTANTIATE_TEST_SUITE_P(Ways, ModelAxisEqual, ::testing::ValuesIn(equal_ways()),
                         [](const auto& info) { return info.param.name; });

class ModelAxisTest : public ModelAxisRuns {
 protected:
  ModelAxisTest() { models().front().change(config_); }

  /// What `--explain-step` prints on rank 0.
  static std::string explained(const config::Config& config, int ranks) {
    std::string text;
    comm::run_ranks_as_threads(ranks, [&](comm::Communicator& communicator) {
      const std::string mine = explain_step(config, testing::borrowed(communicator));
      if (communicator.rank() == 0) text = mine;
    });
    return text;
  }
};

TEST_F(ModelAxisTest, CommunicatesWhatTheFormulaSays) {
  for (const bool sequence_parallel : {true, false}) {
    for (const char* mode : {"none", "full"}) {
      for (const int64_t context : {1, 2}) {
        config::Config config = on({.dcn = 1, .data = 2, .context = context, .model = 2}, "explained");
        config.mesh.sequence_parallel = sequence_parallel;
        config.activation_checkpointing.mode = mode;
        config.training.gradient_accumulation_steps = 2;
        const std::string text = explained(config, ranks_of(config.mesh));
        EXPECT_NE(text.find(sequence_parallel ? "reduce-scatters of layers" : "all-reduces of layers"),
                  std::string::npos)
            << text;
        for (const char* row :
             {"reduce-scatters of gradients", "all-reduces of gradients", "all-gathers of layers"}) {
          const size_t begin = text.find(row);
          ASSERT_NE(begin, std::string::npos) << row;
          const std::string line = text.substr(begin, text.find('\n', begin) - begin);
          EXPECT_THAT(line, HasSubstr("  equal")) << text;
        }
        EXPECT_THAT(text, Not(HasSubstr("  +")));
        EXPECT_THAT(text, Not(HasSubstr("  -")));
        EXPECT_THAT(text, Not(HasSubstr("OVER")));
      }
    }
  }
}

TEST_F(ModelAxisTest, TheUpdateCommunicatesWhatThePlanSays) {
  for (const char* optimizer : {"muon", "lamb", "adafactor"}) {
    for (const char* strategy : {"full_shard", "no_shard"}) {
      config::Config config = on({.dcn = 1, .data = 2, .context = 1, .model = 2}, "explained");
      config.optimizer.name = optimizer;
      config.fsdp.strategy = strategy;
      const std::string text = explained(config, 4);
      EXPECT_THAT(text, HasSubstr(" of the update")) << optimizer;
      EXPECT_THAT(text, Not(HasSubstr("  +"))) << optimizer;
      EXPECT_THAT(text, Not(HasSubstr("  -"))) << optimizer;
    }
  }
}

TEST_F(ModelAxisTest, RefusesWhatDoesNotDivide) {
  const comm::MeshOptions eight = {.dcn = 1, .data = 1, .context = 1, .model = 8};
  const auto refused = [&](const comm::MeshOptions& mesh, const std::string& message, const Change& change) {
    config::Config config = on(mesh, "refused");
    change(config);
    EXPECT_EQ(failure(ranks_of(mesh), config, message), ErrorKind::kUsage);
  };
  refused(
      eight,
      "model.num_attention_heads must be a multiple of mesh.model = 8, because each of 8 processes gets as many "
      "heads, but is 4 = 0 * 8 + 4; change one of the two",
      [](auto& config) { config.model.num_attention_heads = 4; });
  refused(eight, "model.intermediate_size must be a multiple of mesh.model = 8",
          [](auto& config) { config.model.intermediate_size = 20; });
  refused({.dcn = 1, .data = 1, .context = 1, .model = 2},
          "model.num_key_value_heads must divide, or be a multiple of, mesh.model = 2", [](auto& config) {
            config.model.num_attention_heads = 6;
            config.model.hidden_size = 12;
            config.model.intermediate_size = 24;
            config.model.num_key_value_heads = 3;
          });
  refused(
      {.dcn = 1, .data = 1, .context = 2, .model = 4},
      "data.sequence_length must be a multiple of mesh.context * mesh.model = 8, because each of 8 processes gets a "
      "part of a sequence, but is 12 = 1 * 8 + 4",
      [](auto& config) { config.data.sequence_length = 12; });
  refused(eight, "vocabulary", [](auto& config) { config.model.vocab_size = 17; });
  refused({.dcn = 1, .data = 2, .context = 1, .model = 2}, "training.global_batch_size",
          [](auto& config) { config.training.global_batch_size = 7; });
}

TEST_F(ModelAxisTest, RefusesOptionsThatCannotBeCombined) {
  const auto refused = [&](const std::string& key, const Change& change) {
    config::Config config = on({.dcn = 1, .data = 1, .context = 1, .model = 2}, "refused");
    change(config);
    std::string found;
    for (const config::Conflict& conflict : config::find_conflicts(config)) found += conflict.message + "\n";
    EXPECT_THAT(found, HasSubstr("mesh.model must be 1 with " + key));
  };
  refused("data.max_tokens", [](auto& config) { config.data.max_tokens = 100; });
  refused("training.cuda_graphs", [](auto& config) { config.training.cuda_graphs = true; });
  refused("fsdp.front = \"spmd\"", [](auto& config) { config.fsdp.front = "spmd"; });
  refused("logging.sample_every", [](auto& config) { config.logging.sample_every = 1; });
}

}  // namespace
}  // namespace fsdp::train
