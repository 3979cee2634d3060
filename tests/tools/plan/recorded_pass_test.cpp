#include "tools/plan/recorded_pass.h"

#include <gtest/gtest.h>

#include <set>

#include "base/util/error.h"
#include "base/util/text.h"
#include "model/kernels/block_product.h"
#include "tools/plan/memory.h"

namespace fsdp::plan {
namespace {

config::Config config_of(const std::string& architecture, const std::string& dtype,
                         const std::vector<std::string>& recomputed = {}) {
  config::Config config;
  config.model.architecture = architecture;
  config.model.hidden_size = 24;
  config.model.intermediate_size = 40;
  config.model.num_attention_heads = 4;
  config.model.num_key_value_heads = architecture == "llama" ? 2 : 4;
  config.model.num_hidden_layers = 3;
  config.model.vocab_size = 50;
  config.model.max_position_embeddings = 8;
  config.data.micro_batch_size = 2;
  config.data.sequence_length = 8;
  config.mixed_precision.param_dtype = dtype;
  config.training.device = "cpu";
  if (!recomputed.empty()) {
    config.activation_checkpointing.mode = "full";
    config.activation_checkpointing.stage_types = recomputed;
  }
  return config;
}

int64_t saved_by_a_block(config::Config config) {
  const int64_t before = record_pass(config).saved_bytes();
  ++config.model.num_hidden_layers;
  return record_pass(config).saved_bytes() - before;
}

int64_t peak_of(const config::Config& config, PassDevice device = PassDevice::kOfConfig) {
  MemoryTape tape;
  record_pass(config, device).play(tape);
  EXPECT_EQ(tape.live(), 0);
  return tape.peak();
}

TEST(RecordedPass, KeepsInputsOfProductsInFloat8In8Bits) {
  config::Config config = config_of("llama", "bfloat16");
  config.model.hidden_size = 64;
  config.model.intermediate_size = 96;
  config.training.device = "auto";
  const int64_t in_bf16 = saved_by_a_block(config);
  config.training.float8 = "tensorwise";
  const int64_t tokens = 2 * 8, scales = in_bf16 - saved_by_a_block(config);
  // Of two norms and the activation; scales and largest magnitudes are a few numbers.
  EXPECT_NEAR(scales, tokens * (64 + 64 + 96), 64 * 10);
}

config::Config cut(config::Config config, int64_t context, comm::ContextAttention attention) {
  config.model.max_position_embeddings = config.data.sequence_length = 512;
  config.mesh.context = context;
  config.mesh.context_attention = attention;
  return config;
}

TEST(RecordedPass, KnowsTheShapesOfProductsAndTheBytesOfResults) {
  const config::Config config = config_of("llama", "float32");
  const RecordedPass pass = record_pass(config);
  double flops = 0, of_heads = 0;
  int64_t bytes = 0;
  StageEvents events;
  events.computes = [&](const Products& products) {
    flops += products.shape.flops();
    if (products.shape.kind == kernels::ProductKind::kAttention) of_heads += products.shape.flops();
    EXPECT_EQ(products.shape.flops(), products.flops);
  };
  events.takes = [&](int64_t of_result) { bytes += of_result; };
  MemoryTape tape;
  pass.play(tape, events);
  EXPECT_DOUBLE_EQ(flops, pass.flops());
  EXPECT_GT(of_heads, 0);
  EXPECT_LT(of_heads, flops / 2);
  EXPECT_GT(bytes, tape.peak());
}

TEST(RecordedPass, OfACutSequenceHasItsShareOfMemoryAndCompute) {
  for (const char* architecture : {"llama", "gpt2"}) {
    config::Config config = config_of(architecture, "bfloat16");
    config.model.hidden_size = 32;    // for flash attention
    config.training.device = "cuda";  // without the memory in which threads of a CPU work
    for (const auto attention : {comm::ContextAttention::kGather, comm::ContextAttention::kRing}) {
      const config::Config whole = cut(config, 1, attention), part = cut(config, 4, attention);
      const RecordedPass of_whole = record_pass(whole), of_part = record_pass(part);
      const auto saved = static_cast<double>(of_whole.saved_bytes());
      EXPECT_NEAR(4 * static_cast<double>(of_part.saved_bytes()), saved, 0.02 * saved) << architecture;
      EXPECT_DOUBLE_EQ(4 * of_part.flops(), of_whole.flops()) << architecture;
      EXPECT_LT(2 * peak_of(part), peak_of(whole)) << architecture;
    }
  }
}

TEST(RecordedPass, HasTheCollectivesOfAttention) {
  for (const std::vector<std::string>& recomputed : {std::vector<std::string>{}, {"attention"}}) {
    for (const auto attention : {comm::ContextAttention::kGather, comm::ContextAttention::kRing}) {
      const config::Config config = cut(config_of("llama", "bfloat16", recomputed), 4, attention);
      int64_t number = 0, bytes = 0, waited = 0;
      StageEvents events;
      events.sends = [&](int64_t, int64_t received) { ++number, bytes += received; };
      events.waits = [&](int64_t) { ++waited; };
      MemoryTape tape;
      record_pass(config).play(tape, events);
      const shard::Traffic traffic = attention_traffic(config, {.context = 4});
      EXPECT_EQ(number, traffic.all_gathers + traffic.reduce_scatters + traffic.shifts);
      EXPECT_EQ(bytes, 3 * (traffic.all_gather_bytes + traffic.reduce_scatter_bytes) + traffic.shift_bytes);
      EXPECT_EQ(waited, number);
    }
  }
}

TEST(RecordedPass, GivesBackAllThatItTakes) {
  for (const char* architecture : {"llama", "gpt2"}) {
    for (const char* dtype : {"float32", "bfloat16", "float16"}) {
      for (bool tied : {false, true}) {
        for (const std::vector<std::string>& recomputed :
             {std::vector<std::string>{}, {"block"}, {"attention"}, {"feed_forward", "head"}}) {
          config::Config config = config_of(architecture, dtype, recomputed);
          config.model.tie_word_embeddings = tied;
          EXPECT_GT(peak_of(config), record_pass(config).saved_bytes())
              << architecture << dtype << tied << util::join(recomputed, ",");
        }
      }
    }
  }
}

TEST(RecordedPass, KeepsTokensAndTargetsAlone) {
  EXPECT_EQ(record_pass(config_of("gpt2", "float32")).kept_bytes(), 2 * 8 * 2 * 8);
}

TEST(RecordedPass, InEightBitsSavesLessAndTakesMore) {
  for (const char* architecture : {"llama", "gpt2"}) {
    config::Config config = config_of(architecture, "bfloat16");
    config.training.device = "cuda";
    config.model.hidden_size = config.model.intermediate_size = 256;
    const int64_t saved = record_pass(config).saved_bytes(), in_sixteen = peak_of(config);
    config.training.float8 = "tensorwise";
    EXPECT_LT(record_pass(config).saved_bytes(), saved - saved / 10);
    const int64_t on_gpu = peak_of(config);
    EXPECT_GT(on_gpu, in_sixteen);
    EXPECT_GT(peak_of(config, PassDevice::kCpu), on_gpu) << "factors in fp32";
    config.training.float8_exclude = {"*"};
    EXPECT_EQ(peak_of(config), in_sixteen);
  }
}

TEST(RecordedPass, OfABlockOfComposedOperationsSavesWhatTheFormulaSays) {
  const int64_t N = 16, D = 24, I = 40, K = 12, H = 4;
  const auto saved = [&](const char* architecture, const char* dtype) {
    config::Config config = config_of(architecture, dtype);
    config.model.fused_kernels = config.training.fused_kernels = false;
    return saved_by_a_block(config);
  };
  EXPECT_EQ(saved("llama", "float32"),
            2 * (12 * N * D + 4 * N) + 4 * N * (2 * D + 2 * K) + 4 * N * H + 4 * 4 * N * I);
  EXPECT_EQ(saved("gpt2", "float32"), 2 * (8 * N * D + 8 * N) + 4 * 4 * N * D + 4 * N * H + 2 * 4 * N * I);
  EXPECT_EQ(saved("gpt2", "bfloat16"),
            2 * (6 * N * D + 8 * N + 8 * D) + 4 * 2 * N * D + 4 * N * H + 2 * 2 * N * I);
}

TEST(RecordedPass, OfAFusedBlockSavesWhatTheFormulaSays) {
  const int64_t N = 16, D = 24, I = 40, K = 12, H = 4;
  for (int64_t e : {4, 2}) {
    if (e == 2 && !kernels::has_bf16_instructions()) continue;  // attention would not be fused
    const char* dtype = e == 4 ? "float32" : "bfloat16";
    EXPECT_EQ(saved_by_a_block(config_of("llama", dtype)),
              2 * (e * N * D + 4 * N) + e * N * (2 * D + 2 * K) + 4 * N * H + 2 * e * N * I);
    EXPECT_EQ(saved_by_a_block(config_of("gpt2", dtype)),
              2 * (e * N * D + 8 * N) + 4 * e * N * D + 4 * N * H + e * N * I);
  }
}

TEST(RecordedPass, OfDocumentsOnAGpuSavesWhatOneKernelForAllDoes) {
  for (const char* architecture : {"llama", "gpt2"}) {
    config::Config config = config_of(architecture, "bfloat16");
    config.training.device = "cuda";
    config.model.hidden_size = 32;
    const int64_t in_rows = saved_by_a_block(config);
    config.data.documents = "mask";
    const int64_t state_of_random_numbers = 3 * 8;
    EXPECT_EQ(saved_by_a_block(config), in_rows + state_of_random_numbers) << architecture;
  }
}

TEST(RecordedPass, OfGroupedQueriesOnAGpuSavesKeysAndValuesOfEachQueryInFp32Only) {
  const auto saved = [](const char* dtype, int64_t kv_heads) {
    config::Config config = config_of("llama", dtype);
    config.training.device = "cuda";
    config.model.num_key_value_heads = kv_heads;
    return saved_by_a_block(config);
  };
  // Those of each group stay beside the queries, which are part of the same matrix
  // (model/kernels/joined_linear.h).
  const int64_t of_groups = 4 * 16 * 2 * 12;
  EXPECT_EQ(saved("float32", 2), saved("float32", 4) + of_groups);
  EXPECT_LT(saved("bfloat16", 2), saved("bfloat16", 4));
}

TEST(RecordedPass, OfARecomputedBlockSavesItsInput) {
  for (const char* architecture : {"llama", "gpt2"}) {
    EXPECT_EQ(saved_by_a_block(config_of(architecture, "float32", {"block"})), 4 * 16 * 24);
    EXPECT_EQ(saved_by_a_block(config_of(architecture, "bfloat16", {"block"})), 2 * 16 * 24);
  }
}

TEST(RecordedPass, MultipliesAThirdMoreWhereBlocksAreRecomputed) {
  for (const char* device : {"cpu", "cuda"}) {
    config::Config config = config_of("llama", "float32");
    config.training.device = device;
    const double once = record_pass(config).flops();
    // The head's three products and the blocks' six.
    EXPECT_DOUBLE_EQ(once, 16 * flops_a_token(config.model, 8).model) << device;
    config.activation_checkpointing.mode = "full";
    const double head = 16 * 6.0 * 24 * 50;
    EXPECT_DOUBLE_EQ(record_pass(config).flops(), head + (once - head) * 4 / 3) << device;
  }
}

TEST(RecordedPass, KeepsTheBatchesThatAreOnADevice) {
  config::Config config = config_of("llama", "float32");
  config.training.gradient_accumulation_steps = 3;
  const int64_t batch = 2 * 8 * config.data.micro_batch_size * config.data.sequence_length;
  const auto kept = [&](const char* device, int64_t prefetch, const char* documents) {
    config.training.device = device;
    config.data.prefetch_batches = prefetch;
    config.data.documents = documents;
    return record_pass(config).kept_bytes();
  };
  EXPECT_EQ(kept("cuda", 2, "join"), kept("cuda", 0, "join") + batch);
  EXPECT_EQ(kept("cuda", 0, "mask"), kept("cuda", 0, "join") + 2 * batch);
  EXPECT_EQ(kept("cpu", 2, "mask"), kept("cpu", 0, "join"));
}

TEST(RecordedPass, ReportsStagesInTheOrderOfBackward) {
  config::Config config = config_of("llama", "float32");
  config.model.num_hidden_layers = 1;
  std::vector<std::string> ended;
  MemoryTape tape;
  StageEvents events;
  events.backward_ends = [&](const std::string& path) { ended.push_back(path); };
  record_pass(config).play(tape, events);
  EXPECT_EQ(ended, (std::vector<std::string>{"lm_head", "model.layers.0.mlp", "model.layers.0.self_attn",
                                             "model.layers.0", ""}));
}

}  // namespace
}  // namespace fsdp::plan
