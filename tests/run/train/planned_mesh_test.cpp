// Plans of steps against what the engine measures: each kind of mesh.

#include "support/plan_of.h"

namespace fsdp::train {
namespace {

using testing::adafactor;
using testing::bf16;
using testing::float8;
using testing::global;
using testing::muon;
using testing::recompute;

INSTANTIATE_TEST_SUITE_P(Meshes, PlanOf,
    ::testing::Values(
        PlannedCase{"hybrid", 8, "llama",
             [](auto& c) {
               c.fsdp.strategy = "hybrid_shard";
               c.mesh.dcn = 2;
             }},
        PlannedCase{"hybrid_accumulated", 8, "llama",
             [](auto& c) {
               c.fsdp.strategy = "hybrid_shard";
               c.mesh.dcn = 2;
               c.training.gradient_accumulation_steps = 3;
             }},
        PlannedCase{"global", 8, "llama", global},
        PlannedCase{"global_bf16_accumulated", 8, "llama",
             [](auto& c) {
               global(c);
               bf16(c);
               c.training.gradient_accumulation_steps = 3;
             }},
        PlannedCase{"global_without_sync", 8, "gpt2",
             [](auto& c) {
               global(c);
               c.training.gradient_accumulation_steps = 2;
               c.training.no_sync = true;
             }},
        PlannedCase{"global_of_whole_models", 4, "gpt2",
             [](auto& c) {
               global(c);
               bf16(c);
               c.mesh.dcn = 4;
             }},
        PlannedCase{"global_per_parameter_bf16_recomputed", 8, "llama",
             [](auto& c) {
               global(c);
               bf16(c);
               recompute(c);
               c.fsdp.layout = "per_parameter";
               c.fsdp.strategy = "hybrid_shard_zero2";
             }},
        PlannedCase{"global_per_parameter_of_whole_models", 2, "llama",
             [](auto& c) {
               global(c);
               c.fsdp.layout = "per_parameter";
             }},
        PlannedCase{"global_offloaded", 4, "llama",
             [](auto& c) {
               global(c);
               c.fsdp.cpu_offload = true;
             }},
        PlannedCase{"global_muon", 4, "llama",
             [](auto& c) {
               muon(c);
               global(c);
             }},
        PlannedCase{"hybrid_zero2_per_parameter", 8, "llama",
             [](auto& c) {
               c.fsdp.strategy = "hybrid_shard_zero2";
               c.fsdp.layout = "per_parameter";
               c.mesh.dcn = 4;
             }},
        PlannedCase{"hybrid_zero2_per_parameter_bf16", 8, "llama",
             [](auto& c) {
               bf16(c);
               c.fsdp.strategy = "hybrid_shard_zero2";
               c.fsdp.layout = "per_parameter";
               c.mesh.dcn = 4;
             }},
        PlannedCase{"spmd", 4, "llama",
             [](auto& c) {
               c.fsdp.front = "spmd";
               c.fsdp.layout = "per_parameter";
             }},
        PlannedCase{"spmd_hybrid_bf16_recomputed", 8, "gpt2",
             [](auto& c) {
               bf16(c);
               recompute(c);
               c.fsdp.front = "spmd";
               c.fsdp.layout = "per_parameter";
               c.fsdp.strategy = "hybrid_shard";
               c.mesh.dcn = 2;
             }},
        PlannedCase{"hybrid_of_replicas_alone", 4, "gpt2",
             [](auto& c) {
               c.fsdp.strategy = "hybrid_shard";
               c.mesh.dcn = 4;
             }},
        PlannedCase{"sharded_over_slices", 8, "llama", [](auto& c) { c.mesh.dcn = 2; }},
        PlannedCase{"context_ring", 4, "llama",
             [](auto& c) {
               c.mesh.context = 2;
               c.model.num_key_value_heads = 2;
               c.data.sequence_length = 128;
             }},
        PlannedCase{"context_gathered_bf16_recomputed", 4, "llama",
             [](auto& c) {
               bf16(c);
               recompute(c);
               c.mesh.context = 4;
               c.mesh.context_attention = comm::ContextAttention::kGather;
               c.model.max_position_embeddings = c.data.sequence_length = 512;
             }},
        PlannedCase{"context_of_replicas_gpt2", 8, "gpt2",
             [](auto& c) {
               c.mesh.dcn = c.mesh.context = 2;
               c.fsdp.strategy = "hybrid_shard";
               c.data.sequence_length = 128;
             }},
        PlannedCase{"model_axis", 4, "llama",
             [](auto& c) {
               c.mesh.model = 2;
               c.model.num_key_value_heads = 2;
             }},
        PlannedCase{"model_axis_of_four_with_shared_keys", 4, "llama",
             [](auto& c) {
               c.mesh.model = 4;
               c.model.num_key_value_heads = 2;
               c.data.sequence_length = 128;
             }},
        PlannedCase{"model_axis_bf16_recomputed", 8, "llama",
             [](auto& c) {
               bf16(c);
               recompute(c);
               c.mesh.model = 4;
               c.training.gradient_accumulation_steps = 2;
               c.data.micro_batch_size = 16;
             }},
        PlannedCase{"model_axis_float8", 4, "llama",[](auto& c) {
float8(c);
c.mesh.model = 2;
}},
// A quarter of the feed-forward is no multiple of 16.
PlannedCase{"model_axis_of_four_float8", 4, "llama",[](auto& c) {
float8(c);
c.mesh.model = 4;
c.data.sequence_length = 128;
c.data.micro_batch_size = 3;
}},
PlannedCase{"model_axis_of_whole_activations_gpt2", 4, "gpt2",
             [](auto& c) {
               c.mesh.model = 2;
               c.mesh.sequence_parallel = false;
               c.model.vocab_size = 511;
             }},
        PlannedCase{"model_axis_and_context", 8, "llama",
             [](auto& c) {
               c.mesh.model = c.mesh.context = 2;
               c.data.sequence_length = 128;
             }},
        PlannedCase{"model_axis_of_replicas", 8, "gpt2",
             [](auto& c) {
               c.mesh.model = c.mesh.dcn = 2;
               c.fsdp.strategy = "hybrid_shard";
               c.model.tie_word_embeddings = true;
             }},
        PlannedCase{"model_axis_per_parameter", 4, "llama",
             [](auto& c) {
               c.mesh.model = 2;
               c.fsdp.layout = "per_parameter";
             }},
        PlannedCase{"model_axis_adafactor", 4, "llama",
             [](auto& c) {
               adafactor(c);
               c.mesh.model = 2;
               c.data.sequence_length = 64;
             }},
        PlannedCase{"model_axis_muon", 4, "llama",
             [](auto& c) {
               muon(c);
               c.mesh.model = 2;
               c.data.sequence_length = 32;
             }},
        PlannedCase{"model_axis_global_optimizer", 8, "llama",
             [](auto& c) {
               global(c);
               c.mesh.model = 2;
             }},
        PlannedCase{"model_axis_of_all_ranks", 4, "gpt2",
             [](auto& c) {
               c.mesh.model = 4;
               c.data.micro_batch_size = 4;
             }}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fsdp::train
