// Plans of steps against what the engine measures: types, recomputation, units, buffers.

#include <limits>

#include "base/util/matrix_units.h"
#include "run/train/arithmetic.h"
#include "run/train/dry_run.h"
#include "support/plan_of.h"
#include "tools/plan/plan.h"

namespace fsdp::train {
namespace {

using namespace plan;
using testing::bf16;
using testing::float8;
using testing::recompute;
using testing::selective;
using testing::small_config;
using testing::stored_in_bf16;

TEST_P(PlanOf, AStepIsWhatTheEngineMeasures) {
  config::Config config = small_config(GetParam().architecture);
  GetParam().change(config);
  const Plan plan = make_plan(config, {.world_size = GetParam().world_size});
  if (config.training.reproducible == "world_size" &&
      !sums_by_sample(util::scalar_type(config.mixed_precision.param_dtype))) {
    GTEST_SKIP() << "no small products of the type on this CPU";
  }
  const DryRun measured = dry_run(config, GetParam().world_size);
  EXPECT_EQ(measured.shards, plan.memory.shards);
  EXPECT_EQ(measured.optimizer, plan.memory.optimizer);
  EXPECT_EQ(measured.gradients, plan.memory.gradients);
  EXPECT_EQ(measured.buffers, plan.memory.buffers);
  EXPECT_EQ(measured.first_arena, measured.arena) << "the pool has asked for more after the first step";
  EXPECT_EQ(measured.traffic, plan.step.traffic);
  EXPECT_EQ(measured.attention, plan.attention_traffic);
  EXPECT_EQ(measured.layers, plan.layer_traffic);
  const double peak = static_cast<double>(plan.memory.peak);
  // Without a matrix unit oneDNN multiplies in bf16, with scratch memory for each thread from libtorch's
  // allocator, which plans do not know: measured peaks are up to 5.4 % over them with two threads, and half
  // of that with one.
  const bool copies = config.mixed_precision.param_dtype.name() == "bfloat16" && !util::has_matrix_unit();
  EXPECT_NEAR(static_cast<double>(measured.peak), peak, (copies ? 0.06 : 0.05) * peak);
  RecordProperty("peak_difference_percent",
                 std::to_string(100 * (static_cast<double>(measured.peak) / peak - 1)));
  EXPECT_GT(measured.peak, 4 << 20) << "too small for a difference to mean anything";
}

/// Mostly weights; nothing has to see all gradients before the first update.
void unclipped(config::Config& config) {
  config.training.max_grad_norm = 0;
  config.model.hidden_size = 256;
  config.model.intermediate_size = 704;
  config.data.micro_batch_size = 1;
  config.data.sequence_length = 16;
}

TEST(UpdatesInBackward, KeepTheGradientsOfOneUnitInPlaceOfAll) {
  for (int ranks : {1, 2}) {
    config::Config config = small_config();
    unclipped(config);
    config.model.num_hidden_layers = 8;
    const Plan alone = make_plan(config, {.world_size = ranks});
    const DryRun measured = dry_run(config, ranks);
    config.training.max_grad_norm = 1;
    const Plan clipped = make_plan(config, {.world_size = ranks});
    const DryRun measured_clipped = dry_run(config, ranks);
    EXPECT_EQ(alone.memory.gradients, 0);
    EXPECT_EQ(measured.gradients, 0);
    const auto most = static_cast<double>(clipped.memory.gradients);
    EXPECT_EQ(most, measured_clipped.gradients);
    EXPECT_GT(static_cast<double>(measured_clipped.peak - measured.peak), 0.8 * most) << ranks;
    EXPECT_NEAR(static_cast<double>(clipped.memory.peak - alone.memory.peak),
                static_cast<double>(measured_clipped.peak - measured.peak), 0.05 * most)
        << ranks;
    EXPECT_LT(alone.memory.resident, clipped.memory.resident);
  }
}

void by_sample(config::Config& config) { config.training.reproducible = "world_size"; }

INSTANTIATE_TEST_SUITE_P(BySample, PlanOf,
                         ::testing::Values(PlannedCase{"one_rank", 1, "llama",
                                                       [](auto& c) {
                                                         by_sample(c);
                                                         c.training.gradient_accumulation_steps = 5;
                                                       }},
                                           PlannedCase{"power_of_two", 4, "llama", by_sample},
                                           PlannedCase{"three_ranks_accumulated", 3, "llama",
                                                       [](auto& c) {
                                                         by_sample(c);
                                                         c.training.gradient_accumulation_steps = 4;
                                                       }},
                                           PlannedCase{"six_ranks_bf16_per_parameter", 6, "llama",
                                                       [](auto& c) {
                                                         by_sample(c);
                                                         bf16(c);
                                                         c.fsdp.layout = "per_parameter";
                                                         c.training.gradient_accumulation_steps = 3;
                                                       }},
                                           PlannedCase{"tied_on_three_ranks", 3, "gpt2",
                                                       [](auto& c) {
                                                         by_sample(c);
                                                         c.model.tie_word_embeddings = true;
                                                         c.training.gradient_accumulation_steps = 2;
                                                       }},
                                           PlannedCase{"tied_on_one_rank", 1, "llama",
                                                       [](auto& c) {
                                                         by_sample(c);
                                                         c.model.tie_word_embeddings = true;
                                                       }},
                                           PlannedCase{"many_samples_recomputed", 2, "llama",
                                                       [](auto& c) {
                                                         by_sample(c);
                                                         recompute(c);
                                                         c.data.micro_batch_size = 8;
                                                         c.data.sequence_length = 16;
                                                       }},
                                           PlannedCase{"no_shard", 3, "llama",
                                                       [](auto& c) {
                                                         by_sample(c);
                                                         c.fsdp.strategy = "no_shard";
                                                         c.training.gradient_accumulation_steps = 3;
                                                       }},
                                           PlannedCase{"hybrid_of_three", 6, "llama",
                                                       [](auto& c) {
                                                         by_sample(c);
                                                         c.fsdp.strategy = "hybrid_shard";
                                                         c.mesh.dcn = 2;
                                                         c.training.gradient_accumulation_steps = 2;
                                                       }},
                                           PlannedCase{"three_replicas_zero2_offloaded", 6, "llama",
                                                       [](auto& c) {
                                                         by_sample(c);
                                                         c.fsdp.strategy = "hybrid_shard";
                                                         c.fsdp.cpu_offload = true;
                                                         c.mesh.dcn = 3;
                                                       }},
                                           PlannedCase{"unclipped", 2, "llama",
                                                       [](auto& c) {
                                                         by_sample(c);
                                                         unclipped(c);
                                                       }}),
                         [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(Configs, PlanOf,
    ::testing::Values(
        PlannedCase{"fp32", 4, "llama", [](auto&) {}},
        PlannedCase{"bf16_reduced_in_fp32", 4, "llama", bf16},
        PlannedCase{"bf16", 4, "llama",
             [](auto& c) { c.mixed_precision.param_dtype = c.mixed_precision.reduce_dtype = "bfloat16"; }},
        PlannedCase{"low_precision_gradients", 4, "llama",
             [](auto& c) {
               c.mixed_precision.param_dtype = c.mixed_precision.reduce_dtype = "bfloat16";
               c.mixed_precision.keep_low_precision_grads = true;
             }},
        PlannedCase{"stored_in_bf16", 2, "llama", stored_in_bf16},
        PlannedCase{"stored_in_bf16_low_precision_gradients", 4, "llama",
             [](auto& c) {
               stored_in_bf16(c);
               c.mixed_precision.reduce_dtype = "bfloat16";
               c.mixed_precision.keep_low_precision_grads = true;
             }},
        PlannedCase{"stored_in_bf16_computed_in_fp32", 4, "llama",
             [](auto& c) { c.fsdp.param_storage = "bfloat16"; }},
        PlannedCase{"stored_in_bf16_on_one_rank", 1, "llama",
             [](auto& c) {
               stored_in_bf16(c);
               c.data.sequence_length = 16;
             }},
        PlannedCase{"stored_in_bf16_no_shard_except_norms", 4, "llama",
             [](auto& c) {
               stored_in_bf16(c);
               c.fsdp.strategy = "no_shard";
               c.mixed_precision.keep_float32 = {"*norm*"};
             }},
        PlannedCase{"stored_in_bf16_offloaded", 3, "llama",
             [](auto& c) {
               stored_in_bf16(c);
               c.fsdp.cpu_offload = true;
             }},
        PlannedCase{"recomputed", 4, "llama", recompute},
        PlannedCase{"recomputed_feed_forward", 4, "llama",
             [](auto& c) {
               recompute(c);
               c.activation_checkpointing.stage_types = {"feed_forward"};
             }},
        PlannedCase{"selective", 4, "llama", selective},
        PlannedCase{"selective_bf16_accumulated_without_sync", 2, "llama",
             [](auto& c) {
               bf16(c);
               selective(c);
               c.training.gradient_accumulation_steps = 2;
               c.training.no_sync = true;
             }},
        PlannedCase{"selective_gpt2_per_parameter", 4, "gpt2",
             [](auto& c) {
               selective(c);
               c.fsdp.layout = "per_parameter";
             }},
        PlannedCase{"selective_nested_units", 4, "llama",
             [](auto& c) {
               selective(c);
               c.fsdp.min_num_params = 65'000;
             }},
        PlannedCase{"selective_almost_everything", 2, "llama",
             [](auto& c) {
               selective(c);
               c.activation_checkpointing.memory_budget = 0.02;
             }},
        PlannedCase{"grouped_queries_offloaded", 3, "llama",
             [](auto& c) {
               c.model.num_key_value_heads = 2;
               c.fsdp.cpu_offload = c.fsdp.move_grads_to_cpu = true;
             }},
        PlannedCase{"biases", 4, "llama", [](auto& c) { c.model.attention_bias = c.model.mlp_bias = true; }},
        PlannedCase{"geglu", 4, "llama", [](auto& c) { c.model.hidden_act = nn::Activation::kGeluTanh; }},
        PlannedCase{"geglu_bf16", 4, "llama",
             [](auto& c) {
               bf16(c);
               c.model.hidden_act = nn::Activation::kGeluTanh;
             }},
        PlannedCase{"qwen2_wide_heads", 2, "llama",
             [](auto& c) {
               c.model.qkv_bias = true;
               c.model.head_dim = 64;
               c.model.num_key_value_heads = 2;
             }},
        PlannedCase{"dropout", 4, "llama",
             [](auto& c) { c.model.attention_dropout = c.model.hidden_dropout = 0.1; }},
        PlannedCase{"dropout_bf16_grouped_queries", 4, "llama",
             [](auto& c) {
               bf16(c);
               c.model.attention_dropout = c.model.embedding_dropout = 0.1;
               c.model.num_key_value_heads = 2;
             }},
        PlannedCase{"dropout_gpt2", 2, "gpt2",
             [](auto& c) { c.model.attention_dropout = c.model.hidden_dropout = 0.1; }},
        PlannedCase{"no_shard", 4, "llama", [](auto& c) { c.fsdp.strategy = "no_shard"; }},
        PlannedCase{"no_shard_bf16", 4, "llama",
             [](auto& c) {
               bf16(c);
               c.fsdp.strategy = "no_shard";
             }},
        PlannedCase{"shard_grad_op_tied", 4, "llama",
             [](auto& c) {
               c.fsdp.strategy = "shard_grad_op";
               c.model.tie_word_embeddings = true;
             }},
        PlannedCase{"one_rank", 1, "llama", [](auto&) {}},
        PlannedCase{"large_tied_vocabulary", 8, "llama",
             [](auto& c) {
               c.model.vocab_size = 8000;
               c.model.tie_word_embeddings = true;
               c.data.sequence_length = 16;
             }},
        PlannedCase{"accumulation", 4, "llama", [](auto& c) { c.training.gradient_accumulation_steps = 3; }},
        PlannedCase{"accumulation_without_sync", 4, "llama",
             [](auto& c) {
               c.training.gradient_accumulation_steps = 3;
               c.training.no_sync = true;
             }},
        PlannedCase{"mostly_weights", 2, "llama",
             [](auto& c) {
               c.model.hidden_size = 256;
               c.model.intermediate_size = 704;
               c.data.micro_batch_size = 1;
               c.data.sequence_length = 8;
             }},
        PlannedCase{"reduce_scatter_group", 4, "llama", [](auto& c) { c.fsdp.reduce_scatter_group = true; }},
        PlannedCase{"reduce_scatter_group_bf16", 4, "llama",
             [](auto& c) {
               bf16(c);
               c.fsdp.reduce_scatter_group = true;
               c.fsdp.layout = "per_parameter";
             }},
        PlannedCase{"reduce_scatter_group_recomputed_without_sync", 4, "gpt2",
             [](auto& c) {
               recompute(c);
               c.fsdp.reduce_scatter_group = true;
               c.training.gradient_accumulation_steps = 2;
               c.training.no_sync = true;
             }},
        PlannedCase{"everything_resharded", 4, "llama",
             [](auto& c) { c.fsdp.reshard_root_after_forward = c.fsdp.reshard_last_after_forward = true; }},
        PlannedCase{"no_prefetch", 4, "llama",
             [](auto& c) { c.fsdp.forward_prefetch = "none"; c.fsdp.backward_prefetch = "none"; }},
        PlannedCase{"nested_units", 4, "llama", [](auto& c) { c.fsdp.min_num_params = 65'000; }},
        PlannedCase{"zero2_bf16", 4, "llama",
             [](auto& c) {
               bf16(c);
               c.fsdp.strategy = "shard_grad_op";
             }},
        PlannedCase{"zero2_low_precision_gradients_large_vocabulary", 4, "llama",
             [](auto& c) {
               c.mixed_precision.param_dtype = c.mixed_precision.reduce_dtype = "bfloat16";
               c.mixed_precision.keep_low_precision_grads = true;
               c.fsdp.strategy = "shard_grad_op";
               c.model.vocab_size = 4000;
             }},
        PlannedCase{"recomputed_zero2_bf16", 4, "llama",
             [](auto& c) {
               bf16(c);
               recompute(c);
               c.fsdp.strategy = "shard_grad_op";
             }},
        PlannedCase{"recomputed_per_parameter_bf16_accumulated", 4, "llama",
             [](auto& c) {
               bf16(c);
               recompute(c);
               c.fsdp.layout = "per_parameter";
               c.training.gradient_accumulation_steps = 2;
             }},
        PlannedCase{"zero2_bf16_offloaded", 4, "gpt2",
             [](auto& c) {
               bf16(c);
               c.fsdp.strategy = "shard_grad_op";
               c.fsdp.cpu_offload = true;
             }},
        PlannedCase{"post_prefetch_bf16", 4, "llama",
             [](auto& c) {
               bf16(c);
               c.fsdp.backward_prefetch = "post";
             }},
        PlannedCase{"per_parameter", 4, "llama", [](auto& c) { c.fsdp.layout = "per_parameter"; }},
        PlannedCase{"per_parameter_padded_bf16", 3, "llama",
             [](auto& c) {
               bf16(c);
               c.fsdp.layout = "per_parameter";
             }},
        PlannedCase{"per_parameter_recomputed_without_prefetch", 4, "gpt2",
             [](auto& c) {
               recompute(c);
               c.fsdp.layout = "per_parameter";
               c.fsdp.forward_prefetch = "none"; c.fsdp.backward_prefetch = "none";
             }},
        PlannedCase{"per_parameter_accumulation_without_sync", 4, "llama",
             [](auto& c) {
               bf16(c);
               c.fsdp.layout = "per_parameter";
               c.training.gradient_accumulation_steps = 2;
               c.training.no_sync = true;
             }},
        PlannedCase{"experts", 2, "mixtral", [](auto& c) { c.model.num_experts = 4; }},
        PlannedCase{"experts_recomputed_bf16", 4, "qwen3_moe",
             [](auto& c) {
               bf16(c);
               recompute(c);
               c.activation_checkpointing.stage_types = {"attention", "expert"};
               c.model.num_experts = 8;
               c.model.moe_intermediate_size = 192;
               c.fsdp.min_num_params = 50'000;
             }},
        PlannedCase{"gpt2", 4, "gpt2", [](auto&) {}},
        PlannedCase{"gpt2_bf16", 4, "gpt2", bf16},
        PlannedCase{"float8", 4, "llama", float8},
        PlannedCase{"float8_gpt2", 4, "gpt2", float8},
        PlannedCase{"float8_by_rows", 4, "llama",
             [](auto& c) {
               float8(c);
               c.training.float8 = "rowwise";
               c.training.gradient_accumulation_steps = 2;
             }},
        PlannedCase{"float8_reduced_in_bf16", 4, "llama",
             [](auto& c) {
               float8(c);
               c.mixed_precision.reduce_dtype = "bfloat16";
             }},
        PlannedCase{"float8_in_some_layers", 4, "llama",
             [](auto& c) {
               float8(c);
               c.model.num_key_value_heads = 2;
               c.training.float8_exclude = {"*.layers.0.*", "*.k_proj.*", "*.up_proj.*"};
             }},
        PlannedCase{"float8_recomputed", 4, "llama",
             [](auto& c) {
               float8(c);
               recompute(c);
             }},
        PlannedCase{"float8_mostly_tokens", 1, "llama",
             [](auto& c) {
               float8(c);
               c.data.micro_batch_size = 8;
             }},
        PlannedCase{"float8_mostly_weights", 1, "llama",
             [](auto& c) {
               float8(c);
               c.model.hidden_size = 256;
               c.model.intermediate_size = 704;
               c.data.micro_batch_size = 1;
               c.data.sequence_length = 16;
             }},
        PlannedCase{"float8_accumulation_without_sync", 4, "llama",
             [](auto& c) {
               float8(c);
               c.training.gradient_accumulation_steps = 3;
               c.training.no_sync = true;
             }},
        PlannedCase{"updated_in_backward", 4, "llama", unclipped},
        PlannedCase{"updated_in_backward_on_one_rank", 1, "gpt2",
             [](auto& c) {
               unclipped(c);
               c.model.tie_word_embeddings = true;
             }},
        PlannedCase{"updated_in_backward_accumulated", 2, "llama",
             [](auto& c) {
               unclipped(c);
               c.training.gradient_accumulation_steps = 3;
             }},
        PlannedCase{"updated_in_backward_accumulated_without_sync", 2, "llama",
             [](auto& c) {
               unclipped(c);
               c.training.gradient_accumulation_steps = 2;
               c.training.no_sync = true;
             }},
        PlannedCase{"updated_in_backward_stored_in_bf16_low_precision_gradients", 2, "llama",
             [](auto& c) {
               unclipped(c);
               stored_in_bf16(c);
               c.mixed_precision.reduce_dtype = "bfloat16";
               c.mixed_precision.keep_low_precision_grads = true;
             }},
        PlannedCase{"updated_in_backward_no_shard_largest_norm", 4, "llama",
             [](auto& c) {
               unclipped(c);
               c.fsdp.strategy = "no_shard";
               c.training.norm_type = std::numeric_limits<double>::infinity();
             }},
        PlannedCase{"updated_in_backward_offloaded", 2, "llama",
             [](auto& c) {
               unclipped(c);
               c.fsdp.cpu_offload = c.fsdp.move_grads_to_cpu = true;
             }},
        PlannedCase{"updated_in_backward_hybrid", 4, "llama",
             [](auto& c) {
               unclipped(c);
               c.fsdp.strategy = "hybrid_shard";
               c.mesh.dcn = 2;
             }},
        PlannedCase{"updated_in_backward_global", 4, "llama",
             [](auto& c) {
               unclipped(c);
               testing::global(c);
             }},
        PlannedCase{"gpt2_recomputed_tied", 4, "gpt2",
             [](auto& c) {
               recompute(c);
               bf16(c);
               c.model.tie_word_embeddings = true;
             }}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fsdp::train
