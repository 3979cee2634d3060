// Sequences cut over mesh.context: whole runs, which have to be those of one process.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "run/train/explain_step.h"
#include "support/mesh_runs.h"

namespace fsdp::train {
namespace {

using ::testing::HasSubstr;

struct RunWay {
  std::string name;
  comm::MeshOptions mesh = {.dcn = 1, .data = 1, .context = 2};
  std::function<void(config::Config&)> change = [](config::Config&) {};
};

std::ostream& operator<<(std::ostream& out, const RunWay& way) { return out << way.name; }

void mask_documents(config::Config& config) {
  config.data.documents = "mask";
  config.data.document_separator = 10;
}

void compute_in_bf16(config::Config& config) {
  config.mixed_precision.param_dtype = config.mixed_precision.reduce_dtype = "bfloat16";
}

std::vector<RunWay> run_ways() {
  const comm::MeshOptions both = {.dcn = 1, .data = 2, .context = 2},
                          four = {.dcn = 1, .data = 1, .context = 4},
                          slices = {.dcn = 2, .data = 1, .context = 2};
  const auto gather = [](comm::MeshOptions mesh) {
    mesh.context_attention = comm::ContextAttention::kGather;
    return mesh;
  };
  const comm::MeshOptions two = {.dcn = 1, .data = 1, .context = 2};
  return {
      {"Two"},
      {"TwoByGathering", gather(two)},
      {"Four", four},
      {"FourByGathering", gather(four)},
      {"TwoByTwo", both},
      {"TwoByTwoByGathering", gather(both)},
      {"Hybrid", slices, [](auto& config) { config.fsdp.strategy = "hybrid_shard"; }},
      {"NoShard", both, [](auto& config) { config.fsdp.strategy = "no_shard"; }},
      {"PerParameter", both, [](auto& config) { config.fsdp.layout = "per_parameter"; }},
      {"Gpt2", both, [](auto& config) { config.model = testing::tiny_options("gpt2"); }},
      {"Tied", both, [](auto& config) { config.model.tie_word_embeddings = true; }},
      {"Qwen2", both, [](auto& config) { config.model.qkv_bias = true; }},
      {"Composed", gather(both), [](auto& config) { config.training.fused_kernels = false; }},
      {"Recomputed", both, [](auto& config) { config.activation_checkpointing.mode = "full"; }},
      {"FeedForwardInRanges", four,
       [](auto& config) {
         config.activation_checkpointing.mode = "full";
         config.activation_checkpointing.feed_forward_tokens = 3;
       }},
      {"Accumulated", both,
       [](auto& config) {
         config.training.gradient_accumulation_steps = 2;
         config.training.no_sync = true;
       }},
      {"Documents", both, mask_documents},
      {"DocumentsByGathering", gather(four), mask_documents},
      {"DocumentsOfGpt2", four,
       [](auto& config) {
         config.model = testing::tiny_options("gpt2");
         mask_documents(config);
       }},
      {"Dropout", four,
       [](auto& config) { config.model.embedding_dropout = config.model.hidden_dropout = 0.2; }},
      {"Accuracy", both, [](auto& config) { config.evaluation.accuracy = true; }},
      {"Bf16", both, compute_in_bf16},
      {"Bf16ByGathering", gather(four), compute_in_bf16},
  };
}

class ContextRuns : public MeshRuns, public ::testing::WithParamInterface<RunWay> {};

TEST_P(ContextRuns, TrainAsOneProcessDoes) {
  GetParam().change(config_);
  config::Config whole = on({.dcn = 1, .data = 1}, "one");
  whole.fsdp.strategy = "full_shard";
  train(1, whole);
  train(ranks_of(GetParam().mesh), on(GetParam().mesh, "cut"));
  const bool exact = config_.mixed_precision.param_dtype == util::FloatType::kFloat32;
  EXPECT_LT(metric("one", "loss").back(), metric("one", "loss").front());
  expect_near("loss", exact ? 1e-6 : 2e-2);
  expect_near("grad_norm", exact ? 1e-5 : 0.1);
  expect_near("validation_loss", exact ? 1e-6 : 2e-2);
  expect_near("tokens", 0);
  if (config_.evaluation.accuracy) expect_near("validation_accuracy", 0);
  if (exact) expect_near_weights(1e-5);
}

INSTANTIATE_TEST_SUITE_P(Ways, ContextRuns, ::testing::ValuesIn(run_ways()),
                         [](const auto& info) { return info.param.name; });

class ContextTest : public MeshRuns {};

std::string explained(const config::Config& config, int ranks) {
  std::string text;
  comm::run_ranks_as_threads(ranks, [&](comm::Communicator& communicator) {
    const std::string mine = explain_step(config, testing::borrowed(communicator));
    if (communicator.rank() == 0) text = mine;
  });
  return text;
}

TEST_F(ContextTest, CommunicatesWhatTheFormulaSays) {
  for (const char* mode : {"none", "full"}) {
    for (comm::ContextAttention attention :
         {comm::ContextAttention::kGather, comm::ContextAttention::kRing}) {
      for (const char* type : {"float32", "bfloat16"}) {
        config::Config config =
            on({.dcn = 1, .data = 1, .context = 4, .context_attention = attention}, "explained");
        config.activation_checkpointing.mode = mode;
        config.mixed_precision.param_dtype = type;
        config.training.gradient_accumulation_steps = 2;
        const std::string text = explained(config, 4);
        const bool rings = attention == comm::ContextAttention::kRing;
        EXPECT_EQ(text.find("shifts of attention") != std::string::npos, rings) << text;
        EXPECT_EQ(text.find("all-gathers of attention") != std::string::npos, !rings) << text;
        size_t equal = 0;
        for (size_t at = text.find("  equal\n"); at != std::string::npos; at = text.find("  equal\n", at + 1))
          ++equal;
        EXPECT_EQ(equal, rings ? 11U : 13U) << text;
      }
    }
  }
}

TEST_F(ContextTest, RefusesWhatDoesNotDivide) {
  config_.data.sequence_length = 12;
  EXPECT_EQ(
      failure(4, on({.dcn = 1, .data = 1, .context = 4}, "refused"),
              "data.sequence_length must be a multiple of 2 * mesh.context = 8, because each of 4 processes "
              "gets two chunks of a sequence, but is 12 = 1 * 8 + 4; set it to 8 or 16"),
      ErrorKind::kUsage);
}

}  // namespace
}  // namespace fsdp::train
