// Plans against what the engine measures, and the plans of configs/plan.

#include "plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "config/load.h"
#include "plan/text.h"
#include "support/source_folder.h"
#include "train/dry_run.h"
#include "util/error.h"
#include "util/system.h"
#include "util/tensor_memory.h"

namespace fsdp::train {
namespace {

using namespace plan;

/// Some MiB a rank: activations, weights and buffers all count.
config::Config small_config(const std::string& architecture = "llama") {
  config::Config config;
  config.model.architecture = architecture;
  config.model.vocab_size = 512;
  config.model.hidden_size = 128;
  config.model.intermediate_size = architecture == "llama" ? 352 : 512;
  config.model.num_attention_heads = config.model.num_key_value_heads = 4;
  config.model.num_hidden_layers = 3;
  config.model.max_position_embeddings = 128;
  config.data.train = {"none.bin"};
  config.data.sequence_length = 64;
  config.data.micro_batch_size = 2;
  config.fsdp.min_num_params = 100'000;
  config.training.device = "cpu";  // what is measured here
  return config;
}

config::Config plan_config(const std::string& name) {
  return config::load_config(testing::source_folder() + "/configs/plan/" + name + ".toml");
}

struct Case {
  std::string name;
  int world_size;
  std::string architecture;
  std::function<void(config::Config&)> change;
};

void PrintTo(const Case& setting, std::ostream* out) { *out << setting.name; }

class PlanOf : public ::testing::TestWithParam<Case> {};

TEST_P(PlanOf, AStepIsWhatTheEngineMeasures) {
  config::Config config = small_config(GetParam().architecture);
  GetParam().change(config);
  const Plan plan = make_plan(config, {.world_size = GetParam().world_size});
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
  EXPECT_NEAR(static_cast<double>(measured.peak), peak, 0.05 * peak);
  RecordProperty("peak_difference_percent",
                 std::to_string(100 * (static_cast<double>(measured.peak) / peak - 1)));
  EXPECT_GT(measured.peak, 4 << 20) << "too small for a difference to mean anything";
}

void muon(config::Config& config) {
  config.optimizer.name = "muon";
  config.optimizer.momentum = 0.95;
  config.data.sequence_length = 16;
}

void lamb(config::Config& config) {
  config.optimizer.name = "lamb";
  config.data.sequence_length = 16;
}

void adafactor(config::Config& config) {
  config.optimizer.name = "adafactor";
  config.data.sequence_length = 16;
}

void global(config::Config& config) {
  config.fsdp.strategy = "hybrid_shard";
  config.fsdp.hybrid_optimizer = "global";
  config.mesh.dcn = 2;
}
void bf16(config::Config& config) { config.mixed_precision.param_dtype = "bfloat16"; }
void stored_in_bf16(config::Config& config) {
  bf16(config);
  config.fsdp.param_storage = "bfloat16";
}
void float8(config::Config& config) {
  bf16(config);
  config.training.float8 = "tensorwise";
}
void lora(config::Config& config) {
  config.lora.rank = 8;
  config.lora.alpha = 16;
}
void recompute(config::Config& config) { config.activation_checkpointing.mode = "full"; }

INSTANTIATE_TEST_SUITE_P(
    Configs, PlanOf,
    ::testing::Values(
        Case{"fp32", 4, "llama", [](auto&) {}}, Case{"bf16_reduced_in_fp32", 4, "llama", bf16},
        Case{"bf16", 4, "llama",
             [](auto& c) { c.mixed_precision.param_dtype = c.mixed_precision.reduce_dtype = "bfloat16"; }},
        Case{"low_precision_gradients", 4, "llama",
             [](auto& c) {
               c.mixed_precision.param_dtype = c.mixed_precision.reduce_dtype = "bfloat16";
               c.mixed_precision.keep_low_precision_grads = true;
             }},
        Case{"stored_in_bf16", 2, "llama", stored_in_bf16},
        Case{"stored_in_bf16_low_precision_gradients", 4, "llama",
             [](auto& c) {
               stored_in_bf16(c);
               c.mixed_precision.reduce_dtype = "bfloat16";
               c.mixed_precision.keep_low_precision_grads = true;
             }},
        Case{"stored_in_bf16_computed_in_fp32", 4, "llama",
             [](auto& c) { c.fsdp.param_storage = "bfloat16"; }},
        Case{"stored_in_bf16_on_one_rank", 1, "llama",
             [](auto& c) {
               stored_in_bf16(c);
               c.data.sequence_length = 16;
             }},
        Case{"stored_in_bf16_no_shard_except_norms", 4, "llama",
             [](auto& c) {
               stored_in_bf16(c);
               c.fsdp.strategy = "no_shard";
               c.mixed_precision.keep_float32 = {"*norm*"};
             }},
        Case{"stored_in_bf16_offloaded", 3, "llama",
             [](auto& c) {
               stored_in_bf16(c);
               c.fsdp.cpu_offload = true;
             }},
        Case{"stored_in_bf16_muon", 2, "llama",
             [](auto& c) {
               muon(c);
               stored_in_bf16(c);
             }},
        Case{"stored_in_bf16_lamb", 2, "llama",
             [](auto& c) {
               lamb(c);
               stored_in_bf16(c);
             }},
        Case{"stored_in_bf16_composed_adam", 2, "llama",
             [](auto& c) {
               stored_in_bf16(c);
               c.optimizer.name = "adam";
               c.optimizer.fused = false;
               c.data.sequence_length = 16;
             }},
        Case{"recomputed", 4, "llama", recompute},
        Case{"recomputed_feed_forward", 4, "llama",
             [](auto& c) {
               recompute(c);
               c.activation_checkpointing.stage_types = {"feed_forward"};
             }},
        Case{"grouped_queries_offloaded", 3, "llama",
             [](auto& c) {
               c.model.num_key_value_heads = 2;
               c.fsdp.cpu_offload = c.fsdp.move_grads_to_cpu = true;
             }},
        Case{"biases", 4, "llama", [](auto& c) { c.model.attention_bias = c.model.mlp_bias = true; }},
        Case{"geglu", 4, "llama", [](auto& c) { c.model.hidden_act = nn::Activation::kGeluTanh; }},
        Case{"geglu_bf16", 4, "llama",
             [](auto& c) {
               bf16(c);
               c.model.hidden_act = nn::Activation::kGeluTanh;
             }},
        Case{"qwen2_wide_heads", 2, "llama",
             [](auto& c) {
               c.model.qkv_bias = true;
               c.model.head_dim = 64;
               c.model.num_key_value_heads = 2;
             }},
        Case{"dropout", 4, "llama",
             [](auto& c) { c.model.attention_dropout = c.model.hidden_dropout = 0.1; }},
        Case{"dropout_bf16_grouped_queries", 4, "llama",
             [](auto& c) {
               bf16(c);
               c.model.attention_dropout = c.model.embedding_dropout = 0.1;
               c.model.num_key_value_heads = 2;
             }},
        Case{"dropout_gpt2", 2, "gpt2",
             [](auto& c) { c.model.attention_dropout = c.model.hidden_dropout = 0.1; }},
        Case{"lora", 4, "llama", lora}, Case{"lora_gpt2", 2, "gpt2", lora},
        Case{"lora_stored_in_bf16", 4, "llama",
             [](auto& c) {
               stored_in_bf16(c);
               lora(c);
               c.data.micro_batch_size = 4;
             }},
        Case{"lora_gathered_once", 4, "llama",
             [](auto& c) {
               lora(c);
               c.training.gradient_accumulation_steps = 3;
               c.fsdp.keep_after_forward = {"*"};
             }},
        Case{"lora_accumulation_without_sync", 2, "llama",
             [](auto& c) {
               lora(c);
               c.training.gradient_accumulation_steps = 3;
               c.training.no_sync = true;
             }},
        Case{"lora_recomputed_some_layers", 4, "llama",
             [](auto& c) {
               lora(c);
               recompute(c);
               c.lora.targets = {"*q_proj", "*v_proj"};
               c.lora.dropout = 0.1;
             }},
        Case{"lora_muon", 2, "llama",
             [](auto& c) {
               muon(c);
               lora(c);
             }},
        Case{"dora", 2, "llama",
             [](auto& c) {
               lora(c);
               c.lora.dora = true;
             }},
        Case{"averaged_weights", 2, "llama", [](auto& c) { c.optimizer.ema_decay = 0.9; }},
        Case{"no_shard", 4, "llama", [](auto& c) { c.fsdp.strategy = "no_shard"; }},
        Case{"no_shard_bf16", 4, "llama",
             [](auto& c) {
               bf16(c);
               c.fsdp.strategy = "no_shard";
             }},
        Case{"shard_grad_op_tied", 4, "llama",
             [](auto& c) {
               c.fsdp.strategy = "shard_grad_op";
               c.model.tie_word_embeddings = true;
             }},
        Case{"one_rank", 1, "llama", [](auto&) {}},
        Case{"large_tied_vocabulary", 8, "llama",
             [](auto& c) {
               c.model.vocab_size = 8000;
               c.model.tie_word_embeddings = true;
               c.data.sequence_length = 16;
             }},
        Case{"accumulation", 4, "llama", [](auto& c) { c.training.gradient_accumulation_steps = 3; }},
        Case{"accumulation_without_sync", 4, "llama",
             [](auto& c) {
               c.training.gradient_accumulation_steps = 3;
               c.training.no_sync = true;
             }},
        Case{"mostly_weights", 2, "llama",
             [](auto& c) {
               c.model.hidden_size = 256;
               c.model.intermediate_size = 704;
               c.data.micro_batch_size = 1;
               c.data.sequence_length = 8;
             }},
        Case{"reduce_scatter_group", 4, "llama", [](auto& c) { c.fsdp.reduce_scatter_group = true; }},
        Case{"reduce_scatter_group_bf16", 4, "llama",
             [](auto& c) {
               bf16(c);
               c.fsdp.reduce_scatter_group = true;
               c.fsdp.layout = "per_parameter";
             }},
        Case{"reduce_scatter_group_recomputed_without_sync", 4, "gpt2",
             [](auto& c) {
               recompute(c);
               c.fsdp.reduce_scatter_group = true;
               c.training.gradient_accumulation_steps = 2;
               c.training.no_sync = true;
             }},
        Case{"composed_optimizer", 2, "llama",
             [](auto& c) {
               c.optimizer.fused = false;
               c.data.sequence_length = 16;
             }},
        Case{"composed_adam", 2, "llama",
             [](auto& c) {
               c.optimizer.name = "adam";
               c.optimizer.fused = false;
               c.data.sequence_length = 16;
             }},
        Case{"composed_nesterov", 2, "llama",
             [](auto& c) {
               c.optimizer.name = "sgd";
               c.optimizer.momentum = 0.9;
               c.optimizer.nesterov = true;
               c.optimizer.fused = false;
               c.data.sequence_length = 16;
             }},
        Case{"lion", 2, "llama", [](auto& c) { c.optimizer.name = "lion"; }},
        Case{"adagrad", 2, "llama", [](auto& c) { c.optimizer.name = "adagrad"; }},
        Case{"adadelta_composed", 2, "llama",
             [](auto& c) {
               c.optimizer.name = "adadelta";
               c.optimizer.weight_decay = 0.1;
               c.optimizer.fused = false;
               c.data.sequence_length = 16;
             }},
        Case{"adamax_composed", 2, "llama",
             [](auto& c) {
               c.optimizer.name = "adamax";
               c.optimizer.fused = false;
               c.data.sequence_length = 16;
             }},
        Case{"lamb", 2, "llama", lamb},
        Case{"lamb_per_parameter", 3, "gpt2",
             [](auto& c) {
               lamb(c);
               c.fsdp.layout = "per_parameter";
             }},
        Case{"adafactor", 3, "llama", adafactor},
        Case{"adafactor_per_parameter", 2, "gpt2",
             [](auto& c) {
               adafactor(c);
               c.optimizer.beta1 = 0.9;
               c.fsdp.layout = "per_parameter";
             }},
        Case{"adafactor_no_shard", 2, "llama",
             [](auto& c) {
               adafactor(c);
               c.fsdp.strategy = "no_shard";
             }},
        Case{"muon", 2, "llama", muon},
        Case{"muon_gpt2_alone", 1, "gpt2", muon},
        Case{"muon_per_parameter", 3, "llama",
             [](auto& c) {
               muon(c);
               c.fsdp.layout = "per_parameter";
             }},
        Case{"muon_no_shard", 2, "llama",
             [](auto& c) {
               muon(c);
               c.fsdp.strategy = "no_shard";
             }},
        Case{"everything_resharded", 4, "llama",
             [](auto& c) { c.fsdp.reshard_root_after_forward = c.fsdp.reshard_last_after_forward = true; }},
        Case{"no_prefetch", 4, "llama",
             [](auto& c) { c.fsdp.forward_prefetch = "none"; c.fsdp.backward_prefetch = "none"; }},
        Case{"nested_units", 4, "llama", [](auto& c) { c.fsdp.min_num_params = 65'000; }},
        Case{"hybrid", 8, "llama",
             [](auto& c) {
               c.fsdp.strategy = "hybrid_shard";
               c.mesh.dcn = 2;
             }},
        Case{"global", 8, "llama", global},
        Case{"global_bf16_accumulated", 8, "llama",
             [](auto& c) {
               global(c);
               bf16(c);
               c.training.gradient_accumulation_steps = 3;
             }},
        Case{"global_without_sync", 8, "gpt2",
             [](auto& c) {
               global(c);
               c.training.gradient_accumulation_steps = 2;
               c.training.no_sync = true;
             }},
        Case{"global_of_whole_models", 4, "gpt2",
             [](auto& c) {
               global(c);
               bf16(c);
               c.mesh.dcn = 4;
             }},
        Case{"global_per_parameter_bf16_recomputed", 8, "llama",
             [](auto& c) {
               global(c);
               bf16(c);
               recompute(c);
               c.fsdp.layout = "per_parameter";
               c.fsdp.strategy = "hybrid_shard_zero2";
             }},
        Case{"global_per_parameter_of_whole_models", 2, "llama",
             [](auto& c) {
               global(c);
               c.fsdp.layout = "per_parameter";
             }},
        Case{"global_offloaded", 4, "llama",
             [](auto& c) {
               global(c);
               c.fsdp.cpu_offload = true;
             }},
        Case{"global_muon", 4, "llama",
             [](auto& c) {
               muon(c);
               global(c);
             }},
        Case{"hybrid_zero2_per_parameter", 8, "llama",
             [](auto& c) {
               c.fsdp.strategy = "hybrid_shard_zero2";
               c.fsdp.layout = "per_parameter";
               c.mesh.dcn = 4;
             }},
        Case{"hybrid_zero2_per_parameter_bf16", 8, "llama",
             [](auto& c) {
               bf16(c);
               c.fsdp.strategy = "hybrid_shard_zero2";
               c.fsdp.layout = "per_parameter";
               c.mesh.dcn = 4;
             }},
        Case{"spmd", 4, "llama",
             [](auto& c) {
               c.fsdp.front = "spmd";
               c.fsdp.layout = "per_parameter";
             }},
        Case{"spmd_hybrid_bf16_recomputed", 8, "gpt2",
             [](auto& c) {
               bf16(c);
               recompute(c);
               c.fsdp.front = "spmd";
               c.fsdp.layout = "per_parameter";
               c.fsdp.strategy = "hybrid_shard";
               c.mesh.dcn = 2;
             }},
        Case{"zero2_bf16", 4, "llama",
             [](auto& c) {
               bf16(c);
               c.fsdp.strategy = "shard_grad_op";
             }},
        Case{"zero2_low_precision_gradients_large_vocabulary", 4, "llama",
             [](auto& c) {
               c.mixed_precision.param_dtype = c.mixed_precision.reduce_dtype = "bfloat16";
               c.mixed_precision.keep_low_precision_grads = true;
               c.fsdp.strategy = "shard_grad_op";
               c.model.vocab_size = 4000;
             }},
        Case{"recomputed_zero2_bf16", 4, "llama",
             [](auto& c) {
               bf16(c);
               recompute(c);
               c.fsdp.strategy = "shard_grad_op";
             }},
        Case{"recomputed_per_parameter_bf16_accumulated", 4, "llama",
             [](auto& c) {
               bf16(c);
               recompute(c);
               c.fsdp.layout = "per_parameter";
               c.training.gradient_accumulation_steps = 2;
             }},
        Case{"zero2_bf16_offloaded", 4, "gpt2",
             [](auto& c) {
               bf16(c);
               c.fsdp.strategy = "shard_grad_op";
               c.fsdp.cpu_offload = true;
             }},
        Case{"post_prefetch_bf16", 4, "llama",
             [](auto& c) {
               bf16(c);
               c.fsdp.backward_prefetch = "post";
             }},
        Case{"hybrid_of_replicas_alone", 4, "gpt2",
             [](auto& c) {
               c.fsdp.strategy = "hybrid_shard";
               c.mesh.dcn = 4;
             }},
        Case{"sharded_over_slices", 8, "llama", [](auto& c) { c.mesh.dcn = 2; }},
        Case{"per_parameter", 4, "llama", [](auto& c) { c.fsdp.layout = "per_parameter"; }},
        Case{"per_parameter_padded_bf16", 3, "llama",
             [](auto& c) {
               bf16(c);
               c.fsdp.layout = "per_parameter";
             }},
        Case{"per_parameter_recomputed_without_prefetch", 4, "gpt2",
             [](auto& c) {
               recompute(c);
               c.fsdp.layout = "per_parameter";
               c.fsdp.forward_prefetch = "none"; c.fsdp.backward_prefetch = "none";
             }},
        Case{"per_parameter_accumulation_without_sync", 4, "llama",
             [](auto& c) {
               bf16(c);
               c.fsdp.layout = "per_parameter";
               c.training.gradient_accumulation_steps = 2;
               c.training.no_sync = true;
             }},
        Case{"gpt2", 4, "gpt2", [](auto&) {}}, Case{"gpt2_bf16", 4, "gpt2", bf16},
        Case{"float8", 4, "llama", float8}, Case{"float8_gpt2", 4, "gpt2", float8},
        Case{"float8_reduced_in_bf16", 4, "llama",
             [](auto& c) {
               float8(c);
               c.mixed_precision.reduce_dtype = "bfloat16";
             }},
        Case{"float8_in_some_layers", 4, "llama",
             [](auto& c) {
               float8(c);
               c.model.num_key_value_heads = 2;
               c.training.float8_exclude = {"*.layers.0.*", "*.k_proj.*", "*.up_proj.*"};
             }},
        Case{"float8_recomputed", 4, "llama",
             [](auto& c) {
               float8(c);
               recompute(c);
             }},
        Case{"float8_mostly_tokens", 1, "llama",
             [](auto& c) {
               float8(c);
               c.data.micro_batch_size = 8;
             }},
        Case{"float8_mostly_weights", 1, "llama",
             [](auto& c) {
               float8(c);
               c.model.hidden_size = 256;
               c.model.intermediate_size = 704;
               c.data.micro_batch_size = 1;
               c.data.sequence_length = 16;
             }},
        Case{"float8_accumulation_without_sync", 4, "llama",
             [](auto& c) {
               float8(c);
               c.training.gradient_accumulation_steps = 3;
               c.training.no_sync = true;
             }},
        Case{"context_ring", 4, "llama",
             [](auto& c) {
               c.mesh.context = 2;
               c.model.num_key_value_heads = 2;
               c.data.sequence_length = 128;
             }},
        Case{"context_gathered_bf16_recomputed", 4, "llama",
             [](auto& c) {
               bf16(c);
               recompute(c);
               c.mesh.context = 4;
               c.mesh.context_attention = comm::ContextAttention::kGather;
               c.model.max_position_embeddings = c.data.sequence_length = 512;
             }},
        Case{"context_of_replicas_gpt2", 8, "gpt2",
             [](auto& c) {
               c.mesh.dcn = c.mesh.context = 2;
               c.fsdp.strategy = "hybrid_shard";
               c.data.sequence_length = 128;
             }},
        Case{"model_axis", 4, "llama",
             [](auto& c) {
               c.mesh.model = 2;
               c.model.num_key_value_heads = 2;
             }},
        Case{"model_axis_of_four_with_shared_keys", 4, "llama",
             [](auto& c) {
               c.mesh.model = 4;
               c.model.num_key_value_heads = 2;
               c.data.sequence_length = 128;
             }},
        Case{"model_axis_bf16_recomputed", 8, "llama",
             [](auto& c) {
               bf16(c);
               recompute(c);
               c.mesh.model = 4;
               c.training.gradient_accumulation_steps = 2;
               c.data.micro_batch_size = 16;
             }},
        Case{"model_axis_of_whole_activations_gpt2", 4, "gpt2",
             [](auto& c) {
               c.mesh.model = 2;
               c.mesh.sequence_parallel = false;
               c.model.vocab_size = 511;
             }},
        Case{"model_axis_and_context", 8, "llama",
             [](auto& c) {
               c.mesh.model = c.mesh.context = 2;
               c.data.sequence_length = 128;
             }},
        Case{"model_axis_of_replicas", 8, "gpt2",
             [](auto& c) {
               c.mesh.model = c.mesh.dcn = 2;
               c.fsdp.strategy = "hybrid_shard";
               c.model.tie_word_embeddings = true;
             }},
        Case{"model_axis_per_parameter", 4, "llama",
             [](auto& c) {
               c.mesh.model = 2;
               c.fsdp.layout = "per_parameter";
             }},
        Case{"model_axis_adafactor", 4, "llama",
             [](auto& c) {
               adafactor(c);
               c.mesh.model = 2;
               c.data.sequence_length = 64;
             }},
        Case{"model_axis_muon", 4, "llama",
             [](auto& c) {
               muon(c);
               c.mesh.model = 2;
               c.data.sequence_length = 32;
             }},
        Case{"model_axis_global_optimizer", 8, "llama",
             [](auto& c) {
               global(c);
               c.mesh.model = 2;
             }},
        Case{"model_axis_of_all_ranks", 4, "gpt2",
             [](auto& c) {
               c.mesh.model = 4;
               c.data.micro_batch_size = 4;
             }},
        Case{"gpt2_recomputed_tied", 4, "gpt2",
             [](auto& c) {
               recompute(c);
               bf16(c);
               c.model.tie_word_embeddings = true;
             }}),
    [](const auto& info) { return info.param.name; });

// Units that wrap() (shard/wrap.h) puts into different places and groups; a config has no such units.
TEST(Plan, ReducesAndUpdatesAdaptersAloneAndGathersKeptFrozenUnitsOnceAStep) {
  config::Config config = small_config();
  lora(config);
  config.lora.targets = {"*q_proj", "*up_proj"};
  config.training.gradient_accumulation_steps = 3;
  config.fsdp.keep_after_forward = {"*"};
  const Plan plan = make_plan(config, {.world_size = 4});
  const auto trained = std::ranges::find(plan.units, "root.trained", &shard::UnitSizes::name);
  ASSERT_NE(trained, plan.units.end());
  EXPECT_EQ(trained->numel, 3 * 8 * ((128 + 128) + (128 + 352)));
  EXPECT_EQ(plan.memory.gradients, 4 * trained->shard_numel);
  EXPECT_EQ(plan.memory.optimizer, 2 * 4 * trained->shard_numel);
  int64_t frozen = 0, frozen_bytes = 0;
  for (const shard::UnitSizes& unit : plan.units) {
    if (unit.name == "root.trained" || !unit.is_cut()) continue;
    ++frozen;
    frozen_bytes += 4 * unit.shard_numel;
  }
  const shard::Traffic& traffic = plan.step.traffic;
  EXPECT_EQ(traffic.reduce_scatters, 3);
  EXPECT_EQ(traffic.reduce_scatter_bytes, 3 * 4 * trained->shard_numel);
  EXPECT_EQ(traffic.all_gathers, frozen + 3);
  EXPECT_EQ(traffic.all_gather_bytes, frozen_bytes + 3 * 4 * trained->shard_numel);
}

TEST(Plan, SaysWhatItSavesToKeepFrozenUnitsGatheredWhereMemorySuffices) {
  config::Config config = small_config();
  lora(config);
  config.training.gradient_accumulation_steps = 3;
  const auto says = [&](double memory_gib) {
    const Plan plan = make_plan(config, {.world_size = 4, .memory_gib = memory_gib});
    return std::ranges::any_of(plan.warnings, [](const std::string& warning) {
      return warning.find("set fsdp.keep_after_forward = [\"*\"]") != std::string::npos;
    });
  };
  const double peak = static_cast<double>(make_plan(config, {.world_size = 4}).memory.device_peak);
  EXPECT_TRUE(says(16));
  EXPECT_FALSE(says(1.01 * peak / (1 << 30)));
  config.fsdp.keep_after_forward = {"*"};
  EXPECT_FALSE(says(16));
}

TEST(PlanMemory, CountsEachUnitWhereItIs) {
  const config::Config config = small_config();
  const comm::MeshShape mesh{.data = 4};
  std::vector<shard::UnitSizes> units = planned_units(config, mesh);
  const RecordedPass pass = record_pass(config);
  const MemoryPlan all = plan_memory(config, units, pass);
  shard::UnitSizes& moved = units.back();
  moved.options.storage.cpu_offload = moved.options.storage.move_grads_to_cpu = true;
  const MemoryPlan one = plan_memory(config, units, pass);
  EXPECT_EQ(one.shards, all.shards);
  EXPECT_EQ(one.optimizer, all.optimizer);
  EXPECT_EQ(one.buffers, all.buffers);
  const int64_t at_rest = 3 * moved.shard_bytes();  // with Adam's two averages
  const int64_t copies = kShardsOnTheDevice * moved.shard_bytes() + moved.reduce_payload_bytes();
  EXPECT_LE(one.device_peak, all.device_peak - at_rest + copies);
  EXPECT_GE(one.device_peak, all.device_peak - at_rest + copies - moved.shard_gradient_bytes());
  for (shard::UnitSizes& unit : units) {
    unit.options.storage.cpu_offload = unit.options.storage.move_grads_to_cpu = true;
  }
  config::Config offloaded = config;
  offloaded.fsdp.cpu_offload = offloaded.fsdp.move_grads_to_cpu = true;
  EXPECT_EQ(plan_memory(config, units, pass).device_peak,
            device_peak(offloaded, planned_units(offloaded, mesh), pass));
}

TEST(Plan, OfTheTenBlocksGivesThePayloadsOfTheNotes) {
  const Plan plan = make_plan(plan_config("ten_blocks"), {});
  EXPECT_EQ(plan.mesh.world_size(), 8);
  // The root, which is the embedding and the head, adds a gather and a reduction of its own.
  EXPECT_EQ(plan.step.traffic.all_gathers + plan.step.traffic.reduce_scatters, 30 + 2);
  const shard::UnitSizes& block = plan.units.at(1);
  EXPECT_NEAR(static_cast<double>(block.numel), 1.6e9, 1e5);
  EXPECT_NEAR(static_cast<double>(block.gather_payload_bytes()), 0.8e9, 1e5);
  const std::string text = plan_text(plan);
  EXPECT_NE(
      text.find(
          "model.layers.0 ... model.layers.9              30    1,600,032,000      0.80 GB     24.00 GB"),
      std::string::npos)
      << text;
}

TEST(Plan, CountsWhatMuonExchangesForWholeMatrices) {
  config::Config config = small_config();
  EXPECT_EQ(make_plan(config, {.world_size = 2}).optimizer_traffic.all_gathers, 0);
  muon(config);
  const Plan plan = make_plan(config, {.world_size = 2});
  int64_t units = 0, bytes = 0;
  for (const shard::UnitSizes& unit : plan.units) {
    // The root unit has the attentions here, beside embedding and head.
    if (unit.name.find("layers") == std::string::npos && !unit.is_root) continue;
    ++units;
    bytes += unit.shard_bytes();
  }
  EXPECT_EQ(units, 4);
  EXPECT_EQ(plan.optimizer_traffic.all_gathers, units);
  EXPECT_EQ(plan.optimizer_traffic.reduce_scatters, units);
  EXPECT_EQ(plan.optimizer_traffic.all_gather_bytes, bytes);
  EXPECT_NE(plan_text(plan).find("whole matrices for muon"), std::string::npos);
  config.fsdp.strategy = "no_shard";
  EXPECT_GT(make_plan(config, {.world_size = 2}).optimizer_traffic.all_reduces, 0);
  EXPECT_EQ(make_plan(config, {.world_size = 1}).optimizer_traffic.all_reduces, 0);
}

TEST(Plan, CountsTheSumsOverTensors) {
  config::Config config = small_config();
  lamb(config);
  const Plan plan = make_plan(config, {.world_size = 2});
  size_t tensors = 0;
  for (const shard::UnitSizes& unit : plan.units) tensors += unit.parameters.size();
  EXPECT_EQ(plan.optimizer_traffic.all_reduces, static_cast<int64_t>(plan.units.size()));
  EXPECT_EQ(plan.optimizer_traffic.all_reduce_bytes, static_cast<int64_t>(16 * tensors));
  EXPECT_NE(plan_text(plan).find("in addition, sums over tensors for lamb"), std::string::npos);
  EXPECT_EQ(make_plan(config, {.world_size = 1}).optimizer_traffic.all_reduces, 0);

  adafactor(config);
  const Plan factored = make_plan(config, {.world_size = 2});
  int64_t numbers = 0;
  for (const shard::UnitSizes& unit : factored.units) {
    for (const shard::ParameterSizes& parameter : unit.parameters) {
      numbers += 2 + (parameter.shape.size() == 2 ? parameter.shape[0] + parameter.shape[1] : 0);
    }
  }
  EXPECT_EQ(factored.optimizer_traffic.all_reduces, 2 * static_cast<int64_t>(factored.units.size()));
  EXPECT_EQ(factored.optimizer_traffic.all_reduce_bytes, 8 * numbers);
  EXPECT_LT(factored.memory.optimizer, plan.memory.optimizer / 20);
}

TEST(Plan, CountsAttentionOverCutSequences) {
  config::Config config = small_config();
  config.mesh.context = 4;
  config.model.num_key_value_heads = 2;
  const Plan plan = make_plan(config, {.world_size = 8});
  const int64_t keys = 2 * 16 * 2 * 32 * 2;  // rows, tokens of a rank, heads, width; keys and values
  EXPECT_EQ(plan.attention_traffic.shifts, 3 * (3 + 3 + 4));
  EXPECT_EQ(plan.attention_traffic.shift_bytes, 3 * (3 + 3 + 4) * keys * 4);
  EXPECT_EQ(plan.tokens_per_step(), 2 * 2 * 64);
  EXPECT_NE(plan_text(plan).find("in addition, attention over mesh.context"), std::string::npos);
  EXPECT_NE(plan_text(plan).find("256 tokens a step (2 groups of 4 ranks x 1 micro-batches"),
            std::string::npos)
      << plan_text(plan);
}

// On a GPU all rows are one chunk of the loss, on a CPU many are; each chunk gathers numbers of its rows.
TEST(Plan, CountsTheCollectivesOfLayersOnTheDevice) {
  config::Config config = plan_config("llama3_8b");
  config.mesh.model = 8;
  config.mesh.data = 1;
  const int64_t of_blocks = 2 * (2 * 32 + 1) + 2 * 32;  // recomputed
  config.training.device = "cuda";
  EXPECT_EQ(layer_traffic(config, {.model = 8}).all_gathers, of_blocks + 1);
  config.training.device = "cpu";
  EXPECT_GT(layer_traffic(config, {.model = 8}).all_gathers, of_blocks + 1);
  EXPECT_EQ(layer_traffic(config, {.model = 8}).reduce_scatters, of_blocks);
  EXPECT_EQ(layer_traffic(config, {.model = 1}), shard::Traffic());
}

TEST(Plan, SaysThatLinearLayersAreInFloat8) {
  config::Config config = small_config();
  EXPECT_EQ(plan_text(make_plan(config, {.world_size = 2})).find("float8"), std::string::npos);
  float8(config);
  const std::string text = plan_text(make_plan(config, {.world_size = 2}));
  EXPECT_NE(text.find(", bfloat16 and float8 reduced in float32"), std::string::npos) << text;
  EXPECT_NE(text.find(" TFLOP, float8 twice as fast\n"), std::string::npos) << text;
}

TEST(Plan, OfATrillionParametersTakesNeitherTimeNorMemory) {
  const config::Config config = plan_config("1t");
  const int64_t resident = util::resident_bytes();
  util::TensorMemory memory;
  auto begin = std::chrono::steady_clock::now();
  const Plan plan = make_plan(config, {});
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_GT(plan.parameters, 1'000'000'000'000);
  EXPECT_EQ(plan.mesh.world_size(), 256);
  EXPECT_LT(seconds, 30);  // touching each parameter would take minutes
  EXPECT_LT(memory.peak_bytes(), 1 << 20);
  EXPECT_LT(util::resident_bytes() - resident, 50 << 20);
  EXPECT_TRUE(plan.fits());
}

TEST(Plan, OfTheOtherConfigsHoldsWhatTheySay) {
  auto expect = [](const char* name, double parameters, int world, double memory_gib) {
    const Plan plan = make_plan(plan_config(name), {.memory_gib = memory_gib});
    EXPECT_NEAR(static_cast<double>(plan.parameters), parameters, 0.02 * parameters) << name;
    EXPECT_EQ(plan.mesh.world_size(), world) << name;
    EXPECT_TRUE(plan.fits()) << plan_text(plan);
  };
  expect("13b", 12.85e9, 8, 40);
  expect("175b", 174.6e9, 128, 40);
  expect("llama3_8b", 8.03e9, 8, 80);
  expect("llama3_70b", 70.6e9, 64, 80);
  expect("llama3_405b", 405.9e9, 768, 80);
  expect("llama2_2b", 1.74e9, 4, 32);
}

TEST(Plan, FindsTheLargestMicroBatchThatFits) {
  config::Config config = small_config();
  const PlanOptions machines = {.world_size = 4, .memory_gib = 0.1};
  const int64_t largest = make_plan(config, machines).largest_micro_batch;
  ASSERT_GT(largest, 2);
  config.data.micro_batch_size = largest;
  EXPECT_TRUE(make_plan(config, machines).fits());
  config.data.micro_batch_size = largest + 1;
  EXPECT_FALSE(make_plan(config, machines).fits());
}

TEST(Plan, SaysWhatToChangeUntilItFits) {
  config::Config config = small_config();
  config.data.micro_batch_size = 16;
  config.fsdp.min_num_params = 60'000;  // no attention in the root, of which advice would speak first
  const PlanOptions machines = {.world_size = 2, .memory_gib = 0.0085};
  const Plan plan = make_plan(config, machines);
  EXPECT_FALSE(plan.fits());
  ASSERT_GE(plan.advice.size(), 2);
  EXPECT_EQ(plan.advice[0].change, "activation_checkpointing.mode = full");
  EXPECT_EQ(plan.advice[1].change.substr(0, 23), "data.micro_batch_size =");
  for (size_t i = 0; i < plan.advice.size(); ++i)
    EXPECT_EQ(plan.advice[i].fits, i + 1 == plan.advice.size()) << i;
  EXPECT_NE(plan_text(plan).find("IT DOES NOT FIT"), std::string::npos);
}

TEST(Plan, AdvisesNothingToARunThatFits) {
  EXPECT_TRUE(make_plan(small_config(), {.world_size = 2}).advice.empty());
}

TEST(Plan, AdvisesToDivideTheOptimizerStateAmongTheSlices) {
  config::Config config = small_config();
  config.fsdp.strategy = "hybrid_shard";
  config.fsdp.min_num_params = 60'000;
  config.mesh.dcn = 2;
  const Plan plan = make_plan(config, {.world_size = 4, .memory_gib = 1e-9});
  const auto found = std::ranges::find(plan.advice, "fsdp.hybrid_optimizer = global", &Advice::change);
  ASSERT_NE(found, plan.advice.end());
  ASSERT_NE(found, plan.advice.begin());
  EXPECT_LT(found->device_peak, std::prev(found)->device_peak);
}

TEST(Plan, TakesTheWorldFromTheOptionOrTheMesh) {
  config::Config config = small_config();
  EXPECT_EQ(make_plan(config, {}).mesh.world_size(), 1);
  EXPECT_EQ(make_plan(config, {.world_size = 12}).mesh.data, 12);
  config.mesh.data = 6;
  EXPECT_EQ(make_plan(config, {}).mesh.data, 6);
  EXPECT_THROW(make_plan(config, {.world_size = 4}), util::Error);
}

TEST(Plan, RefusesMachinesThatCannotBe) {
  for (const PlanOptions& machines :
       {PlanOptions{.memory_gib = 0}, PlanOptions{.bandwidth_gbps = -1}, PlanOptions{.flops_tflops = NAN},
        PlanOptions{.world_size = -2}, PlanOptions{.world_size = int64_t{1} << 40}}) {
    EXPECT_THROW(make_plan(small_config(), machines), util::Error);
  }
}

TEST(Plan, IsTheSameAsJson) {
  const Plan plan = make_plan(small_config(), {.world_size = 4});
  auto json = nlohmann::json::parse(plan_json(plan));
  EXPECT_EQ(json["parameters"], plan.parameters);
  EXPECT_EQ(json["memory"]["peak_bytes"], plan.memory.peak);
  EXPECT_EQ(json["communication"]["reduce_scatters"], plan.step.traffic.reduce_scatters);
  int64_t payload = 0, units = 0;
  for (const auto& group : json["units"]) {
    payload += group["communication"]["payload_bytes"].get<int64_t>();
    units += group["units"].get<int64_t>();
  }
  EXPECT_EQ(payload, json["communication"]["payload_bytes"]);
  EXPECT_EQ(units, static_cast<int64_t>(plan.units.size()));
}

TEST(DryRun, PrintsPlanAndMeasurementSideBySide) {
  const config::Config config = small_config();
  const Plan plan = make_plan(config, {.world_size = 64});
  const DryRun measured = dry_run(config, 64);
  const std::string text = dry_run_text(plan, measured);
  int equal = 0;
  for (size_t at = text.find("  equal\n"); at != std::string::npos; at = text.find("  equal\n", at + 1))
    ++equal;
  EXPECT_GE(equal, 10) << text;
  auto json = nlohmann::json::parse(dry_run_json(plan, measured));
  EXPECT_EQ(json["measured"]["shard_bytes"], json["memory"]["shard_bytes"]);
}

TEST(DecimalBytes, SpeakOfCommunicationAsTheNotesDo) {
  EXPECT_EQ(decimal_bytes(96), "96 B");
  EXPECT_EQ(decimal_bytes(8'208), "8.21 kB");
  EXPECT_EQ(decimal_bytes(800'016'000), "0.80 GB");
  EXPECT_EQ(decimal_bytes(24'000'480'000), "24.00 GB");
}

}  // namespace
}  // namespace fsdp::train
