#include "plan/activations.h"

#include <gtest/gtest.h>

#include "util/text.h"

namespace fsdp::plan {
namespace {

ActivationShape shape_of(const std::string& architecture, int64_t element,
                         std::vector<std::string> recomputed = {}) {
  ActivationShape shape;
  shape.model.architecture = architecture;
  shape.model.hidden_size = 24;
  shape.model.intermediate_size = 40;
  shape.model.num_attention_heads = 4;
  shape.model.num_key_value_heads = architecture == "llama" ? 2 : 4;
  shape.model.num_hidden_layers = 3;
  shape.model.vocab_size = 50;
  shape.rows = 2;
  shape.tokens = 8;
  shape.element = element;
  shape.recomputed = std::move(recomputed);
  return shape;
}

int64_t saved_by_a_block(ActivationShape shape) {
  int64_t before = saved_activation_bytes(shape);
  ++shape.model.num_hidden_layers;
  return saved_activation_bytes(shape) - before;
}

TEST(PlanActivations, GiveBackAllThatTheyTake) {
  for (const char* architecture : {"llama", "gpt2"}) {
    for (int64_t element : {4, 2}) {
      for (bool tied : {false, true}) {
        for (const std::vector<std::string>& recomputed :
             {std::vector<std::string>{}, {"block"}, {"attention"}, {"feed_forward", "head"}}) {
          ActivationShape shape = shape_of(architecture, element, recomputed);
          shape.model.tie_word_embeddings = tied;
          MemoryTape tape;
          run_micro_batch(shape, tape);
          EXPECT_EQ(tape.live(), 0) << architecture << element << tied << util::join(recomputed, ",");
          EXPECT_GT(tape.peak(), saved_activation_bytes(shape));
        }
      }
    }
  }
}

TEST(PlanActivations, InEightBitsAreSavedAsInSixteen) {
  for (const char* architecture : {"llama", "gpt2"}) {
    ActivationShape shape = shape_of(architecture, 2);
    shape.model.hidden_size = shape.model.intermediate_size = 256;
    const int64_t saved = saved_activation_bytes(shape);
    const auto peak = [&] {
      MemoryTape tape;
      run_micro_batch(shape, tape);
      EXPECT_EQ(tape.live(), 0);
      EXPECT_EQ(saved_activation_bytes(shape), saved);
      return tape.peak();
    };
    const int64_t in_sixteen = peak();
    shape.float8.on = true;
    const int64_t on_gpu = peak();
    shape.float8_on_cpu = true;
    EXPECT_GT(on_gpu, in_sixteen);
    EXPECT_GT(peak(), on_gpu) << "factors in fp32";
    shape.float8.exclude = {"*"};
    EXPECT_EQ(peak(), in_sixteen);
  }
}

TEST(PlanActivations, OfABlockAreThoseOfTheFormula) {
  const int64_t N = 16, D = 24, I = 40, K = 12, H = 4;
  EXPECT_EQ(saved_by_a_block(shape_of("llama", 4)),
            2 * (12 * N * D + 4 * N) + 4 * N * (2 * D + 2 * K) + 4 * N * H + 4 * 4 * N * I);
  EXPECT_EQ(saved_by_a_block(shape_of("llama", 2)),
            2 * (10 * N * D + 4 * N) + 2 * N * (2 * D + 2 * K) + 4 * N * H + 4 * 2 * N * I);
  EXPECT_EQ(saved_by_a_block(shape_of("gpt2", 4)),
            2 * (8 * N * D + 8 * N) + 4 * 4 * N * D + 4 * N * H + 2 * 4 * N * I);
  EXPECT_EQ(saved_by_a_block(shape_of("gpt2", 2)),
            2 * (6 * N * D + 8 * N + 8 * D) + 4 * 2 * N * D + 4 * N * H + 2 * 2 * N * I);
}

TEST(PlanActivations, OfAFusedBlockAreThoseOfTheFormula) {
  const int64_t N = 16, D = 24, I = 40, K = 12, H = 4;
  for (int64_t e : {4, 2}) {
    ActivationShape llama = shape_of("llama", e), gpt2 = shape_of("gpt2", e);
    llama.fused = gpt2.fused = true;
    EXPECT_EQ(saved_by_a_block(llama),
              2 * (2 * e * N * D + 4 * N) + e * N * (2 * D + 2 * K) + 4 * N * H + 3 * e * N * I);
    EXPECT_EQ(saved_by_a_block(gpt2),
              2 * (2 * e * N * D + 8 * N) + 4 * e * N * D + 4 * N * H + 2 * e * N * I);
  }
}

TEST(PlanActivations, OfARecomputedBlockAreItsInput) {
  for (const char* architecture : {"llama", "gpt2"}) {
    EXPECT_EQ(saved_by_a_block(shape_of(architecture, 4, {"block"})), 4 * 16 * 24);
    EXPECT_EQ(saved_by_a_block(shape_of(architecture, 2, {"block"})), 2 * 16 * 24);
  }
}

TEST(PlanActivations, TellStagesInTheOrderOfBackward) {
  ActivationShape shape = shape_of("llama", 4);
  shape.model.num_hidden_layers = 1;
  std::vector<std::string> ended;
  MemoryTape tape;
  StageEvents events;
  events.backward_ends = [&](const std::string& path) { ended.push_back(path); };
  run_micro_batch(shape, tape, events);
  EXPECT_EQ(ended, (std::vector<std::string>{"lm_head", "model.layers.0.mlp", "model.layers.0.self_attn",
                                             "model.layers.0", "model.embed_tokens", ""}));
}

}  // namespace
}  // namespace fsdp::plan
