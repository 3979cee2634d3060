// Plans of steps against what the engine measures: each optimizer.

#include "support/plan_of.h"

namespace fsdp::train {
namespace {

using testing::adafactor;
using testing::lamb;
using testing::muon;
using testing::stored_in_bf16;

void states_in_8_bits(config::Config& config) { config.optimizer.state_dtype = optim::StateType::kInt8; }

INSTANTIATE_TEST_SUITE_P(
    Optimizers, PlanOf,
    ::testing::Values(PlannedCase{"stored_in_bf16_muon", 2, "llama",
                                  [](auto& c) {
                                    muon(c);
                                    stored_in_bf16(c);
                                  }},
                      PlannedCase{"stored_in_bf16_lamb", 2, "llama",
                                  [](auto& c) {
                                    lamb(c);
                                    stored_in_bf16(c);
                                  }},
                      PlannedCase{"stored_in_bf16_composed_adam", 2, "llama",
                                  [](auto& c) {
                                    stored_in_bf16(c);
                                    c.optimizer.name = "adam";
                                    c.optimizer.fused = false;
                                    c.data.sequence_length = 16;
                                  }},
                      PlannedCase{"states_in_bf16", 2, "llama",
                                  [](auto& c) { c.optimizer.state_dtype = optim::StateType::kBFloat16; }},
                      PlannedCase{"states_in_bf16_composed", 2, "llama",
                                  [](auto& c) {
                                    c.optimizer.state_dtype = optim::StateType::kBFloat16;
                                    c.optimizer.fused = false;
                                    c.data.sequence_length = 16;
                                  }},
                      PlannedCase{"states_in_bf16_lion", 2, "llama",
                                  [](auto& c) {
                                    c.optimizer.state_dtype = optim::StateType::kBFloat16;
                                    c.optimizer.name = "lion";
                                    c.data.sequence_length = 16;
                                  }},
                      PlannedCase{"states_in_bf16_muon", 2, "llama",
                                  [](auto& c) {
                                    muon(c);
                                    c.optimizer.state_dtype = optim::StateType::kBFloat16;
                                  }},
                      PlannedCase{"states_in_int8", 2, "llama", states_in_8_bits},
                      PlannedCase{"states_in_int8_per_parameter", 3, "gpt2",
                                  [](auto& c) {
                                    states_in_8_bits(c);
                                    c.fsdp.layout = "per_parameter";
                                  }},
                      PlannedCase{"states_in_int8_lion", 2, "llama",
                                  [](auto& c) {
                                    states_in_8_bits(c);
                                    c.optimizer.name = "lion";
                                  }},
                      PlannedCase{"states_in_int8_muon", 2, "llama",
                                  [](auto& c) {
                                    states_in_8_bits(c);
                                    muon(c);
                                  }},
                      PlannedCase{"stored_in_bf16_with_states_in_int8", 2, "llama",
                                  [](auto& c) {
                                    states_in_8_bits(c);
                                    stored_in_bf16(c);
                                  }},
                      PlannedCase{"stored_in_bf16_with_states", 2, "llama",
                                  [](auto& c) {
                                    stored_in_bf16(c);
                                    c.optimizer.state_dtype = optim::StateType::kBFloat16;
                                  }},
                      PlannedCase{"averaged_weights", 2, "llama",
                                  [](auto& c) { c.optimizer.ema_decay = 0.9; }},
                      PlannedCase{"composed_optimizer", 2, "llama",
                                  [](auto& c) {
                                    c.optimizer.fused = false;
                                    c.data.sequence_length = 16;
                                  }},
                      PlannedCase{"composed_adam", 2, "llama",
                                  [](auto& c) {
                                    c.optimizer.name = "adam";
                                    c.optimizer.fused = false;
                                    c.data.sequence_length = 16;
                                  }},
                      PlannedCase{"composed_nesterov", 2, "llama",
                                  [](auto& c) {
                                    c.optimizer.name = "sgd";
                                    c.optimizer.momentum = 0.9;
                                    c.optimizer.nesterov = true;
                                    c.optimizer.fused = false;
                                    c.data.sequence_length = 16;
                                  }},
                      PlannedCase{"lion", 2, "llama", [](auto& c) { c.optimizer.name = "lion"; }},
                      PlannedCase{"adagrad", 2, "llama", [](auto& c) { c.optimizer.name = "adagrad"; }},
                      PlannedCase{"adadelta_composed", 2, "llama",
                                  [](auto& c) {
                                    c.optimizer.name = "adadelta";
                                    c.optimizer.weight_decay = 0.1;
                                    c.optimizer.fused = false;
                                    c.data.sequence_length = 16;
                                  }},
                      PlannedCase{"adamax_composed", 2, "llama",
                                  [](auto& c) {
                                    c.optimizer.name = "adamax";
                                    c.optimizer.fused = false;
                                    c.data.sequence_length = 16;
                                  }},
                      PlannedCase{"lamb", 2, "llama", lamb},
                      PlannedCase{"lamb_per_parameter", 3, "gpt2",
                                  [](auto& c) {
                                    lamb(c);
                                    c.fsdp.layout = "per_parameter";
                                  }},
                      PlannedCase{"adafactor", 3, "llama", adafactor},
                      PlannedCase{"adafactor_per_parameter", 2, "gpt2",
                                  [](auto& c) {
                                    adafactor(c);
                                    c.optimizer.beta1 = 0.9;
                                    c.fsdp.layout = "per_parameter";
                                  }},
                      PlannedCase{"adafactor_no_shard", 2, "llama",
                                  [](auto& c) {
                                    adafactor(c);
                                    c.fsdp.strategy = "no_shard";
                                  }},
                      PlannedCase{"muon", 2, "llama", muon}, PlannedCase{"muon_gpt2_alone", 1, "gpt2", muon},
                      PlannedCase{"muon_per_parameter", 3, "llama",
                                  [](auto& c) {
                                    muon(c);
                                    c.fsdp.layout = "per_parameter";
                                  }},
                      PlannedCase{"muon_no_shard", 2, "llama",
                                  [](auto& c) {
                                    muon(c);
                                    c.fsdp.strategy = "no_shard";
                                  }}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fsdp::train
