// The conditions in the table of keys: each key that has one is here, with settings that meet it and settings
// that do not.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "setup/config/condition.h"
#include "setup/config/config_text.h"
#include "setup/config/keys.h"
#include "setup/config/load.h"
#include "state/groups/parameter_groups.h"

namespace fsdp::config {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Settings = std::vector<std::string>;

struct Row {
  std::string value;            ///< of the key, not its default
  std::vector<Settings> met;    ///< ways of meeting the condition
  std::vector<Settings> unmet;  ///< and of not meeting it
};

const Settings kLora = {"lora.rank = 8"};
const Settings kGpt2 = {"model.architecture = \"gpt2\""};
const Settings kYarn = {"model.rope_type = \"yarn\""}, kDynamic = {"model.rope_type = \"dynamic\""},
               kLongrope = {"model.rope_type = \"longrope\"", "model.head_dim = 4",
                            "model.rope_short_factor = [1.0, 1.0]", "model.rope_long_factor = [1.0, 1.0]"};
const Settings kGranite = {"model.architecture = \"granite\""};
const Settings kGemma2 = {"model.architecture = \"gemma2\""}, kNeox = {"model.architecture = \"gpt_neox\""};
const Settings kMixtral = {"model.architecture = \"mixtral\"", "model.num_experts = 8"};
const Settings kQwen3Moe = {"model.architecture = \"qwen3_moe\"", "model.num_experts = 8",
                            "model.moe_intermediate_size = 32"};
const Settings kValidates = {"data.validation = [\"v.bin\"]"};
const Settings kContinuous = {"checkpoint.schedule = \"continuous\"", "checkpoint.asynchronous = true"};
const Settings kValidatesOften = {"data.validation = [\"v.bin\"]", "evaluation.interval_steps = 5"};
const Settings kScaled = {"mixed_precision.param_dtype = \"float16\""};

Settings with(Settings settings, const std::string& last) {
  settings.push_back(last);
  return settings;
}

Settings optimizer(const std::string& name, Settings more = {}) {
  more.push_back("optimizer.name = \"" + name + "\"");
  // muon has no default for it.
  if (name == "muon") more.emplace_back("optimizer.momentum = 0.95");
  return more;
}
Settings schedule(const std::string& name) { return {"lr_scheduler.name = \"" + name + "\""}; }
Settings strategy(const std::string& name, Settings more = {}) {
  more.push_back("fsdp.strategy = \"" + name + "\"");
  return more;
}
/// An objective of preferences; those with a reference need its weights.
Settings with_objective(const std::string& name, Settings more = {}) {
  more.push_back("training.objective = \"" + name + "\"");
  return more;
}
const Settings kReferenceModel = {"preference.reference_model = \"w\""},
               kStoredReference = {"preference.reference = \"stored\""},
               kTeacher = {"distillation.teacher_model = \"t\""};

const std::map<std::string, Row>& rows() {
  static const Settings none;
  static const Settings local_steps = {"training.local_steps = 50", "fsdp.strategy = \"hybrid_shard\"",
                                       "mesh.dcn = 2"};
  static const std::vector<Settings> several = {{"training.gradient_accumulation_steps = 2"},
                                                {"training.global_batch_size = 64"}};
  static const std::vector<Settings> unscaled = {
      none, {"mixed_precision.param_dtype = \"bfloat16\""}, {kScaled[0], "loss_scaler.enabled = \"false\""}};
  static const std::vector<Settings> scaled = {kScaled, {"mixed_precision.reduce_dtype = \"float16\""}};
  static const std::vector<Settings> resharding = {strategy("full_shard"), strategy("hybrid_shard")};
  static const std::vector<Settings> not_resharding = {strategy("shard_grad_op"),
                                                       strategy("no_shard"),
                                                       strategy("hybrid_shard_zero2"),
                                                       {"fsdp.reshard_after_forward = false"}};
  static const std::vector<Settings> plain_schedules = {schedule("constant"), schedule("linear"),
                                                        schedule("cosine"), schedule("inverse_sqrt")};
  static const std::map<std::string, Row> table = {
      {"lora.alpha", {"32.0", {kLora}, {none}}},
      {"lora.dropout", {"0.05", {kLora}, {none}}},
      {"lora.targets", {"[\"*q_proj\"]", {kLora}, {none}}},
      {"lora.use_rslora", {"true", {kLora}, {none}}},
      {"lora.quantize", {"\"nf4\"", {kLora}, {none}}},
      {"lora.dora", {"true", {kLora}, {none}}},
      {"lora.init_from", {"\"adapter\"", {kLora}, {none}}},
      {"model.num_key_value_heads", {"4", {none}, {kGpt2}}},
      {"model.head_dim", {"64", {none}, {kGpt2}}},
      {"model.attention_bias", {"true", {none}, {kGpt2}}},
      {"model.qkv_bias", {"true", {none}, {kGpt2}}},
      {"model.mlp_bias", {"true", {none}, {kGpt2}}},
      {"model.hidden_act", {"\"gelu_pytorch_tanh\"", {none}, {kGpt2}}},
      {"model.sliding_window", {"512", {none}, {kGpt2}}},
      {"model.sliding_window_pattern",
       {"6", {{kGemma2[0], "model.sliding_window = 512"}}, {none, {kGemma2[0], "model.sliding_window = 0"}}}},
      {"model.use_parallel_residual", {"true", {kNeox}, {none}}},
      {"model.num_experts", {"16", {{kMixtral[0]}, {kQwen3Moe[0], kQwen3Moe[2]}}, {none}}},
      {"model.num_experts_per_tok", {"3", {kMixtral, kQwen3Moe}, {none}}},
      {"model.moe_intermediate_size", {"64", {{kQwen3Moe[0], kQwen3Moe[1]}}, {none, kMixtral}}},
      {"model.norm_topk_prob", {"true", {kQwen3Moe}, {none, kMixtral}}},
      {"model.decoder_sparse_step", {"2", {kQwen3Moe}, {none, kMixtral}}},
      {"model.router_aux_loss_coef", {"0.01", {kMixtral, kQwen3Moe}, {none}}},
      {"model.query_pre_attn_scalar", {"256", {kGemma2}, {none}}},
      {"model.attention_multiplier", {"0.5", {kGranite}, {none}}},
      {"model.embedding_multiplier", {"12.0", {kGranite}, {none}}},
      {"model.residual_multiplier", {"0.25", {kGranite}, {none}}},
      {"model.logits_scaling", {"8.0", {kGranite}, {none}}},
      {"model.attn_logit_softcapping", {"50.0", {kGemma2}, {none}}},
      {"model.final_logit_softcapping", {"30.0", {kGemma2}, {none}}},
      {"model.rope_local_base_freq",
       {"10000.0", {{"model.architecture = \"gemma3_text\""}}, {none, kGemma2}}},
      {"model.partial_rotary_factor", {"0.25", {kNeox}, {none}}},
      {"model.no_rope_layer_interval", {"4", {{"model.architecture = \"smollm3\""}}, {none}}},
      {"model.rope_theta", {"5e+5", {none}, {kGpt2}}},
      {"model.rope_type", {"\"llama3\"", {none}, {kGpt2}}},
      {"model.rope_factor",
       {"8.0",
        {{"model.rope_type = \"linear\""}, {"model.rope_type = \"llama3\""}, kYarn, kDynamic, kLongrope},
        {none, {"model.rope_type = \"default\""}, kGpt2}}},
      {"model.rope_low_freq_factor",
       {"2.0", {{"model.rope_type = \"llama3\""}}, {none, {"model.rope_type = \"linear\""}}}},
      {"model.rope_high_freq_factor",
       {"8.0", {{"model.rope_type = \"llama3\""}}, {none, {"model.rope_type = \"linear\""}}}},
      {"model.rope_original_length",
       {"2048", {{"model.rope_type = \"llama3\""}, kYarn, kLongrope}, {none, kDynamic}}},
      {"model.rope_attention_factor", {"1.5", {kYarn, kLongrope}, {none, kDynamic}}},
      {"model.rope_beta_fast", {"16.0", {kYarn}, {none, kLongrope}}},
      {"model.rope_beta_slow", {"2.0", {kYarn}, {none, kLongrope}}},
      {"model.rope_mscale", {"0.7", {kYarn}, {none, kLongrope}}},
      {"model.rope_mscale_all_dim", {"0.7", {kYarn}, {none, kLongrope}}},
      {"model.rope_truncate", {"false", {kYarn}, {none, kLongrope}}},
      {"model.rope_short_factor",
       {"[1.5, 2.0]", {{kLongrope[0], kLongrope[1], kLongrope[3]}}, {none, kYarn}}},
      {"model.rope_long_factor", {"[1.5, 2.0]", {{kLongrope[0], kLongrope[1], kLongrope[2]}}, {none, kYarn}}},
      {"model.rms_norm_eps", {"1e-6", {none}, {kGpt2}}},
      {"model.layer_norm_epsilon", {"1e-6", {kGpt2}, {{"model.architecture = \"llama\""}}}},
      {"model.init_unused",
       {"[\"score.*\"]",
        {{"model.init_from = \"weights\"", "model.hidden_size = 256"}},
        {{"model.init_from = \"\""}}}},
      {"data.document_separator",
       {"7",
        {{"data.documents = \"mask\""},
         {"data.documents = \"split\""},
         {"data.documents = \"join\"", "data.train = [\"a.txt\"]"}},
        {{"data.documents = \"join\"", "data.train = [\"a.bin\"]"}}}},
      {"data.shuffle_block_size",
       {"512",
        {{"data.train = [\"texts/*.jsonl.zst\"]"}, {"data.train = [\"texts/\"]"}},
        {{"data.train = [\"a.bin\"]"}, {"data.train = [\"a.txt\"]", "data.shuffle = false"}}}},
      {"data.text_column",
       {"\"tokens\"", {{"data.train = [\"a.parquet\"]"}}, {{"data.train = [\"a.u32\"]"}}}},
      {"data.skip_bad",
       {"3",
        {{"data.train = [\"a.tar\"]"}, {"data.train = [\"a.bin\"]", "data.validation = [\"v.jsonl\"]"}},
        {{"data.train = [\"a.bin\"]"}}}},
      {"data.cache_gib", {"4", {{"data.train = [\"shards\"]"}}, {{"data.train = [\"a.idx\"]"}}}},
      {"data.allow_changed", {"true", {none}, {{"checkpoint.resume = \"never\""}}}},
      {"training.batch_warmup_steps", {"5", several, {{"training.gradient_accumulation_steps = 1"}}}},
      {"training.no_sync", {"true", several, {{"training.gradient_accumulation_steps = 1"}}}},
      {"training.logits_mib",
       {"2048", {none, {"training.device = \"cuda\""}}, {{"training.device = \"cpu\""}}}},
      {"training.matmul",
       {"\"onednn\"", {none, {"training.device = \"cpu\""}}, {{"training.device = \"cuda\""}}}},
      {"training.product_trials",
       {"true", {none, {"training.device = \"cuda\""}}, {{"training.device = \"cpu\""}}}},
      {"training.float8_exclude",
       {"[\"*.0.*\"]",
        {{"training.float8 = \"tensorwise\"", "mixed_precision.param_dtype = \"bfloat16\""}},
        {{"training.float8 = \"none\""}}}},
      {"training.cuda_graphs",
       {"true", {none, {"training.device = \"cuda\""}}, {{"training.device = \"cpu\""}}}},
      {"training.skip_window", {"64", {{"training.skip_zscore = 6.0"}}, {{"training.skip_zscore = 0.0"}}}},
      {"training.max_skipped_steps",
       {"3",
        {{"training.skip_zscore = 6.0"}, {"training.skip_nonfinite = true"}},
        {{"training.skip_zscore = 0.0", "training.skip_nonfinite = false"}}}},
      {"training.slow_rank_factor",
       {"2.0", {{"training.device = \"cpu\""}, none}, {{"training.device = \"cuda\""}}}},
      {"training.slow_rank_steps",
       {"5",
        {{"training.slow_rank_factor = 2.0"}, none},
        {{"training.slow_rank_factor = 0.0"}, {"training.device = \"cuda\""}}}},
      {"evaluation.interval_steps",
       {"5", {kValidates, {"evaluation.tasks = [\"t.jsonl\"]"}}, {{"data.validation = []"}}}},
      {"preference.beta",
       {"0.5",
        {with_objective("dpo", kReferenceModel), with_objective("orpo"),
         with_objective("kto", kStoredReference)},
        {none}}},
      {"preference.label_smoothing",
       {"0.1",
        {with_objective("dpo", kReferenceModel), with_objective("robust", kReferenceModel),
         with_objective("exo_pair", kReferenceModel), with_objective("simpo"), with_objective("cpo")},
        {none, with_objective("orpo"), with_objective("hinge", kReferenceModel),
         with_objective("kto", kStoredReference)}}},
      {"preference.length_normalised",
       {"true",
        {with_objective("dpo", kReferenceModel)},
        {none, with_objective("simpo"), with_objective("ipo", kReferenceModel)}}},
      {"preference.simpo_gamma", {"1.0", {with_objective("simpo")}, {none, with_objective("cpo")}}},
      {"preference.cpo_alpha",
       {"0.5", {with_objective("cpo")}, {none, with_objective("simpo"), with_objective("orpo")}}},
      {"preference.desirable_weight",
       {"1.5", {with_objective("kto", kStoredReference)}, {none, with_objective("cpo")}}},
      {"preference.undesirable_weight",
       {"0.7", {with_objective("kto", kStoredReference)}, {none, with_objective("cpo")}}},
      {"preference.exchanged_rows",
       {"4", {with_objective("kto", kStoredReference)}, {none, with_objective("cpo")}}},
      {"preference.reference",
       {"\"stored\"",
        {with_objective("dpo"), with_objective("apo_down"), with_objective("kto")},
        {none, with_objective("simpo"), with_objective("orpo"), with_objective("cpo")}}},
      {"preference.reference_model",
       {"\"w\"",
        {with_objective("dpo"), with_objective("kto", {"preference.reference = \"model\""})},
        {none, with_objective("simpo"), with_objective("dpo", kStoredReference),
         with_objective("dpo", {"preference.reference = \"base\"", "lora.rank = 8"})}}},
      {"distillation.teacher",
       {"\"stored\"",
        {with_objective("distill", {"distillation.top_k = 8"})},
        {none, with_objective("dpo", kReferenceModel)}}},
      {"distillation.teacher_model", {"\"t\"", {with_objective("distill")}, {none, with_objective("cpo")}}},
      {"distillation.beta", {"0.25", {with_objective("distill", kTeacher)}, {none, with_objective("cpo")}}},
      {"distillation.temperature",
       {"2.0", {with_objective("distill", kTeacher)}, {none, with_objective("cpo")}}},
      {"distillation.alpha", {"0.5", {with_objective("distill", kTeacher)}, {none, with_objective("cpo")}}},
      {"distillation.top_k", {"8", {with_objective("distill", kTeacher)}, {none, with_objective("cpo")}}},
      {"evaluation.max_samples", {"64", {kValidates}, {{"data.validation = []"}}}},
      {"evaluation.accuracy", {"true", {kValidates}, {{"data.validation = []"}}}},
      {"evaluation.best_metric",
       {"\"loss\"",
        {with(kValidatesOften, "evaluation.patience = 3"),
         with(kValidatesOften, "checkpoint.keep_best = true")},
        {{"evaluation.patience = 0", "checkpoint.keep_best = false"}}}},
      {"evaluation.patience",
       {"3",
        {kValidatesOften},
        {{"data.validation = []"}, {"evaluation.interval_steps = 0", kValidates[0]}}}},
      {"evaluation.min_delta",
       {"0.1",
        {kValidatesOften},
        {{"data.validation = []"}, {"evaluation.interval_steps = 0", kValidates[0]}}}},
      {"optimizer.betas",
       {"[0.8, 0.9]",
        {optimizer("adamw"), optimizer("adam"), optimizer("adamax"), optimizer("lion"), optimizer("lamb"),
         optimizer("muon")},
        {optimizer("sgd"), optimizer("adagrad"), optimizer("adafactor")}}},
      {"optimizer.eps",
       {"1e-6",
        {optimizer("adamw"), optimizer("adam"), optimizer("adagrad"), optimizer("muon")},
        {optimizer("sgd"), optimizer("lion"), optimizer("adafactor")}}},
      {"optimizer.rho", {"0.95", {optimizer("adadelta")}, {optimizer("adamw")}}},
      {"optimizer.relative_step", {"false", {optimizer("adafactor")}, {optimizer("adamw")}}},
      {"optimizer.scale_parameter", {"false", {optimizer("adafactor")}, {optimizer("adamw")}}},
      {"optimizer.clip_threshold", {"2.0", {optimizer("adafactor")}, {optimizer("adamw")}}},
      {"optimizer.decay_rate", {"-0.5", {optimizer("adafactor")}, {optimizer("lamb")}}},
      {"optimizer.beta1", {"0.9", {optimizer("adafactor")}, {optimizer("adamw")}}},
      {"optimizer.adafactor_eps", {"[1e-20, 0.01]", {optimizer("adafactor")}, {optimizer("adamw")}}},
      {"optimizer.momentum",
       {"0.9",
        {optimizer("sgd"), {"optimizer.name = \"muon\""}},
        {optimizer("adamw"), optimizer("adam"), optimizer("lion")}}},
      {"optimizer.dampening",
       {"0.1",
        {optimizer("sgd", {"optimizer.momentum = 0.9"})},
        {optimizer("adamw"), optimizer("muon"), optimizer("sgd", {"optimizer.momentum = 0.0"})}}},
      {"optimizer.nesterov",
       {"true",
        {optimizer("sgd", {"optimizer.momentum = 0.9"}), optimizer("muon")},
        {optimizer("adamw"), optimizer("sgd", {"optimizer.momentum = 0.0"}),
         optimizer("sgd", {"optimizer.momentum = 0.9", "optimizer.dampening = 0.1"})}}},
      {"optimizer.no_decay",
       {"[\"*.bias\"]",
        {{"optimizer.weight_decay = 0.2"},
         {"optimizer.groups = [{pattern = \"*\", weight_decay = 0.1}]", "optimizer.weight_decay = 0.0"}},
        {{"optimizer.weight_decay = 0.0"}, optimizer("sgd"), optimizer("lion")}}},
      {"optimizer.adamw_parameters", {"[\"*embed*\"]", {optimizer("muon")}, {optimizer("adamw")}}},
      {"optimizer.ns_steps", {"6", {optimizer("muon")}, {optimizer("adamw")}}},
      {"optimizer.ns_coefficients", {"[2.0, -1.5, 0.5]", {optimizer("muon")}, {optimizer("sgd")}}},
      {"optimizer.adjust_lr_fn", {"\"match_rms_adamw\"", {optimizer("muon")}, {optimizer("adamw")}}},
      {"optimizer.offload", {"\"stream\"", {optimizer("lion")}, {optimizer("muon")}}},
      {"optimizer.state_dtype", {"\"bfloat16\"", {optimizer("lion")}, {optimizer("lamb")}}},
      {"lr_scheduler.hold_steps",
       {"20", {{"lr_scheduler.name = \"tri_stage\"", "lr_scheduler.min_lr_ratio = 0.1"}}, plain_schedules}},
      {"lr_scheduler.decay_steps",
       {"20",
        {schedule("wsd"), {"lr_scheduler.name = \"tri_stage\"", "lr_scheduler.min_lr_ratio = 0.1"}},
        plain_schedules}},
      {"lr_scheduler.min_lr_ratio",
       {"0.1",
        {schedule("linear"), schedule("cosine"), schedule("inverse_sqrt"), schedule("tri_stage")},
        {schedule("constant")}}},
      {"lr_scheduler.power", {"2.0", {schedule("polynomial")}, plain_schedules}},
      {"outer_optimizer.name", {"\"sgd\"", {local_steps}, {none}}},
      {"outer_optimizer.lr", {"0.5", {local_steps}, {none}}},
      {"outer_optimizer.momentum", {"0.8", {local_steps}, {none}}},
      {"outer_optimizer.reduce_dtype", {"\"int8\"", {local_steps}, {none}}},
      {"outer_optimizer.fragments", {"4", {local_steps}, {none}}},
      {"outer_optimizer.fragment_delay", {"5", {local_steps}, {none}}},
      {"outer_optimizer.mixing",
       {"0.25",
        {{"training.local_steps = 50", "outer_optimizer.fragment_delay = 2",
          "fsdp.strategy = \"hybrid_shard\"", "mesh.dcn = 2"}},
        {none, local_steps}}},
      {"fsdp.shard_dimension",
       {"\"first\"", {{"fsdp.layout = \"per_parameter\""}}, {{"fsdp.layout = \"flat\""}}}},
      {"fsdp.shard_1d_parameters",
       {"true", {{"fsdp.layout = \"per_parameter\""}}, {{"fsdp.layout = \"flat\""}}}},
      {"fsdp.replicated_parameters",
       {"[\"*norm*\"]", {strategy("full_shard"), strategy("shard_grad_op")}, {strategy("no_shard")}}},
      {"fsdp.replica_check_interval",
       {"100",
        {strategy("hybrid_shard"),
         strategy("hybrid_shard_zero2"),
         strategy("no_shard"),
         {"fsdp.replicated_parameters = [\"*norm*\"]"},
         {"fsdp.layout = \"per_parameter\""}},
        {strategy("full_shard"),
         strategy("shard_grad_op"),
         {"fsdp.layout = \"per_parameter\"", "fsdp.shard_1d_parameters = true"}}}},
      {"fsdp.hybrid_optimizer",
       {"\"global\"",
        {{"fsdp.strategy = \"hybrid_shard\"", "mesh.dcn = 2"},
         {"fsdp.strategy = \"hybrid_shard_zero2\"", "mesh.dcn = -1"}},
        {{"fsdp.strategy = \"hybrid_shard\"", "mesh.dcn = 1"}}}},
      {"fsdp.reshard_after_forward",
       {"false", resharding, {strategy("shard_grad_op"), strategy("hybrid_shard_zero2")}}},
      {"fsdp.keep_after_forward", {"[\"*.3\"]", resharding, not_resharding}},
      {"fsdp.reshard_root_after_forward", {"true", resharding, not_resharding}},
      {"fsdp.reshard_last_after_forward", {"true", resharding, not_resharding}},
      {"fsdp.forward_prefetch", {"\"explicit\"", {strategy("shard_grad_op")}, {strategy("no_shard")}}},
      {"fsdp.backward_prefetch", {"\"post\"", {strategy("full_shard")}, {strategy("no_shard")}}},
      {"fsdp.limit_all_gathers",
       {"false", {strategy("full_shard")}, {strategy("no_shard"), {"fsdp.forward_prefetch = \"none\""}}}},
      {"fsdp.reduce_scatter_group", {"true", {strategy("full_shard")}, {strategy("no_shard")}}},
      {"fsdp.gather_dtype", {"\"int8\"", {strategy("full_shard")}, {strategy("no_shard")}}},
      {"fsdp.quantize_links",
       {"\"all\"",
        {{"fsdp.gather_dtype = \"int8\""}, {"fsdp.reduce_dtype = \"int4\""}},
        {{"fsdp.gather_dtype = \"exact\"", "fsdp.reduce_dtype = \"exact\""}}}},
      {"fsdp.error_feedback",
       {"true",
        {{"fsdp.reduce_dtype = \"int8\""}, {"fsdp.reduce_dtype = \"int4\""}},
        {{"fsdp.gather_dtype = \"int8\"", "fsdp.reduce_dtype = \"exact\""}}}},
      {"fsdp.move_grads_to_cpu", {"true", {{"fsdp.cpu_offload = true"}}, {{"fsdp.cpu_offload = false"}}}},
      {"mixed_precision.keep_low_precision_grads",
       {"true",
        {{"mixed_precision.reduce_dtype = \"bfloat16\""}},
        {{"mixed_precision.reduce_dtype = \"float32\""}}}},
      {"mixed_precision.keep_low_precision_shards",
       {"\"true\"",
        {{"mixed_precision.param_dtype = \"bfloat16\""}, {"mixed_precision.param_dtype = \"float16\""}},
        {none, {"mixed_precision.param_dtype = \"bfloat16\"", "fsdp.param_storage = \"bfloat16\""}}}},
      {"mixed_precision.keep_float32",
       {"[\"*norm*\"]",
        {{"mixed_precision.param_dtype = \"bfloat16\""},
         {"mixed_precision.reduce_dtype = \"bfloat16\""},
         {"fsdp.gather_dtype = \"int8\""},
         {"fsdp.reduce_dtype = \"int8\""}},
        {{"mixed_precision.param_dtype = \"float32\"", "mixed_precision.reduce_dtype = \"float32\""}}}},
      {"loss_scaler.enabled", {"\"false\"", scaled, {none, {"mixed_precision.param_dtype = \"bfloat16\""}}}},
      {"loss_scaler.init_scale", {"1024.0", scaled, unscaled}},
      {"loss_scaler.growth_factor", {"1.5", scaled, unscaled}},
      {"loss_scaler.backoff_factor", {"0.25", scaled, unscaled}},
      {"loss_scaler.growth_interval", {"100", scaled, unscaled}},
      {"loss_scaler.min_scale", {"0.5", scaled, unscaled}},
      {"activation_checkpointing.stage_types",
       {"[\"feed_forward\"]",
        {{"activation_checkpointing.mode = \"full\""}},
        {{"activation_checkpointing.mode = \"none\""}}}},
      {"activation_checkpointing.memory_budget",
       {"0.25",
        {{"activation_checkpointing.mode = \"selective\""}, {"activation_checkpointing.mode = \"offload\""}},
        {{"activation_checkpointing.mode = \"full\""}, {"activation_checkpointing.mode = \"none\""}}}},
      {"mesh.context_attention", {"\"gather\"", {{"mesh.context = 2"}}, {{"mesh.context = 1"}}}},
      {"mesh.sequence_parallel", {"false", {{"mesh.model = 2"}}, {{"mesh.model = 1"}}}},
      {"checkpoint.interval_steps",
       {"7",
        {none},
        {{"checkpoint.interval_minutes = 10"}, kContinuous, {"checkpoint.schedule = \"auto\""}}}},
      {"checkpoint.interval_minutes", {"7.5", {none}, {kContinuous, {"checkpoint.schedule = \"auto\""}}}},
      {"checkpoint.keep_every", {"100", {none}, {{"checkpoint.keep_last = 0"}}}},
      {"checkpoint.keep_best",
       {"true",
        {kValidatesOften},
        {{"data.validation = []"}, {"evaluation.interval_steps = 0", kValidates[0]}}}},
      {"checkpoint.asynchronous", {"true", {none}, {{"checkpoint.kind = \"full\""}}}},
      {"checkpoint.init_only",
       {"[\"layers.*\"]", {{"checkpoint.init_from = \"run\""}}, {{"checkpoint.init_from = \"\""}}}},
      {"checkpoint.init_missing",
       {"[\"lm_head.*\"]", {{"checkpoint.init_from = \"run\""}}, {{"checkpoint.init_from = \"\""}}}},
      {"logging.metrics_host",
       {"\"0.0.0.0\"", {{"logging.metrics_port = 9400"}}, {{"logging.metrics_port = 0"}}}},
      {"logging.metrics_ranks",
       {"\"all\"", {{"logging.metrics_port = 9400"}}, {{"logging.metrics_port = 0"}}}},
      {"logging.nvtx", {"true", {none, {"training.device = \"cuda\""}}, {{"training.device = \"cpu\""}}}},
      {"logging.memory_snapshot",
       {"true", {none, {"training.device = \"cuda\""}}, {{"training.device = \"cpu\""}}}},
      {"logging.sample_prompt",
       {"\"ROMEO:\"", {{"logging.sample_every = 10"}}, {{"logging.sample_every = 0"}}}},
      {"logging.sample_tokens", {"8", {{"logging.sample_every = 10"}}, {{"logging.sample_every = 0"}}}},
  };
  return table;
}

/// These need a loss of a plug-in; tests/setup/plugin has one.
const std::vector<std::string> kOnlyWithPlugins = {"training.loss", "training.label_smoothing",
                                                   "training.z_loss"};

const Key& key_of(const std::string& name) {
  const size_t dot = name.find('.');
  const Key* key = find_key(name.substr(0, dot), name.substr(dot + 1));
  EXPECT_NE(key, nullptr) << name;
  return *key;
}

/// The setting that every config needs, unless the lines have it.
std::string data_unless_in(const Settings& lines) {
  const bool has_data =
      std::ranges::any_of(lines, [](const std::string& line) { return line.starts_with("data.train ="); });
  return has_data ? "" : "data.train = [\"a.bin\"]\n";
}

TracedConfig traced(const Settings& lines, const Settings& overrides = {}) {
  testing::TemporaryFolder folder;
  std::string text = data_unless_in(lines);
  for (const std::string& line : lines) text += line + "\n";
  return trace_config(folder.write("c.toml", text), overrides);
}

TEST(Conditions, EveryKeyThatHasOneIsTested) {
  for (const Key& key : all_keys()) {
    const std::string name = key.full_name();
    const bool is_tested =
        rows().contains(name) ||
        std::find(kOnlyWithPlugins.begin(), kOnlyWithPlugins.end(), name) != kOnlyWithPlugins.end();
    EXPECT_EQ(static_cast<bool>(key.matters.holds), is_tested) << name;
    EXPECT_EQ(key.matters.words.empty(), !is_tested) << name;
  }
}

TEST(Conditions, EveryBuiltInOptimizerSaysWhichKeysItReads) {
  for (const std::string& name : optim::optimizer_names()) {
    const optim::OptimizerTraits& traits = *optim::optimizer_traits().find(name);
    ASSERT_TRUE(traits.keys.has_value()) << name;
    for (const std::string& key : *traits.keys)
      EXPECT_TRUE(find_key("optimizer", key)) << name << ": " << key;
  }
}

TEST(Conditions, AKeyThatMattersIsTakenWithoutAWord) {
  for (const auto& [name, row] : rows()) {
    for (const Settings& met : row.met) {
      SCOPED_TRACE(name + " with " + ::testing::PrintToString(met));
      TracedConfig loaded = traced(with(met, name + " = " + row.value));
      EXPECT_THAT(loaded.warnings, IsEmpty());
      EXPECT_EQ(toml_text(value_of(key_of(name), loaded.config)), row.value);
    }
  }
}

TEST(Conditions, AKeyThatDoesNotMatterIsRefusedWhereItStands) {
  for (const auto& [name, row] : rows()) {
    for (const Settings& unmet : row.unmet) {
      SCOPED_TRACE(name + " with " + ::testing::PrintToString(unmet));
      const std::string start =
          name + " matters only when " + key_of(name).matters.words + ", but is " + row.value;
      EXPECT_THAT(error_of("data.train = [\"a.bin\"]\n", with(unmet, name + " = " + row.value)),
                  HasSubstr("command line: " + start));
      std::string file = name + " = " + row.value + "\n" + data_unless_in(unmet);
      for (const std::string& line : unmet) file += line + "\n";
      EXPECT_THAT(error_of(file), HasSubstr("c.toml:1: " + start));
    }
  }
}

TEST(Conditions, AKeyThatALaterSettingLeavesWithoutEffectIsIgnoredWithAWarning) {
  for (const auto& [name, row] : rows()) {
    for (const Settings& unmet : row.unmet) {
      if (unmet.empty()) continue;
      SCOPED_TRACE(name + " with " + ::testing::PrintToString(unmet));
      TracedConfig loaded = traced({name + " = " + row.value}, unmet);
      ASSERT_EQ(loaded.warnings.size(), 1u) << ::testing::PrintToString(loaded.warnings);
      EXPECT_THAT(loaded.warnings.front(),
                  HasSubstr("c.toml:2: " + name + " = " + row.value +
                            " is ignored, because it matters only when " + key_of(name).matters.words));
      EXPECT_NE(toml_text(value_of(key_of(name), loaded.config)), row.value);
    }
  }
}

TEST(Conditions, ADefaultIsFineAnywhere) {
  for (const auto& [name, row] : rows()) {
    for (const Settings& unmet : row.unmet) {
      SCOPED_TRACE(name + " with " + ::testing::PrintToString(unmet));
      Config plain = traced(unmet).config;
      const std::string value = toml_text(value_of(key_of(name), plain));
      EXPECT_THAT(traced(with(unmet, name + " = " + value)).warnings, IsEmpty());
    }
  }
}

TEST(Conditions, TellEachKeyThatContradictsAnother) {
  const std::string message = error_of(
      "data.train = [\"a.bin\"]\n[optimizer]\nname = \"adamw\"\nmomentum = 0.9\ndampening = 0.1\nnesterov = true\n");
  EXPECT_THAT(
      message,
      HasSubstr("c.toml:4: optimizer.momentum matters only when optimizer.name is sgd or muon, but is 0.9 "
                "with optimizer.name = \"adamw\" (c.toml:3); leave it out, or change what it depends on"));
  EXPECT_THAT(message, HasSubstr("c.toml:5: optimizer.dampening matters only when"));
  EXPECT_THAT(message, HasSubstr("c.toml:6: optimizer.nesterov matters only when"));
}

TEST(Conditions, AnotherOptimizerOnTheCommandLineTakesTheFilesKeysAlong) {
  const Settings file = {"optimizer.name = \"sgd\"", "optimizer.momentum = 0.9", "optimizer.nesterov = true"};
  const TracedConfig loaded = traced(file, {"optimizer.name=adamw"});
  ASSERT_EQ(loaded.warnings.size(), 2u);
  EXPECT_THAT(
      loaded.warnings[0],
      HasSubstr("c.toml:3: optimizer.momentum = 0.9 is ignored, because it matters only when optimizer.name "
                "is sgd or muon; found optimizer.name = \"adamw\" (command line); leave it out if that is "
                "to stay"));
  EXPECT_FALSE(loaded.config.optimizer.nesterov);
  EXPECT_EQ(loaded.origins.at("optimizer.momentum"), "default");
}

TEST(Conditions, TellWhereWhatTheyDependOnWasSet) {
  const TracedConfig loaded =
      traced({"data.validation = [\"v\"]", "evaluation.interval_steps = 5", "evaluation.patience = 3"},
             {"data.validation=[]"});
  ASSERT_EQ(loaded.warnings.size(), 2u);
  EXPECT_THAT(loaded.warnings[1],
              HasSubstr("found data.validation = [] (command line) and evaluation.interval_steps = 5 ("));
  EXPECT_THAT(loaded.warnings[1], HasSubstr("c.toml:3); leave it out"));
  const TracedConfig decay = traced({"optimizer.no_decay = [\"*.bias\"]"}, {"optimizer.name=sgd"});
  ASSERT_EQ(decay.warnings.size(), 1u);
  EXPECT_THAT(decay.warnings[0], HasSubstr("found optimizer.weight_decay = 0.0 (default of sgd) and"));
}

TEST(Conditions, AMisspeltValueIsNotBlamedOnWhatDependsOnIt) {
  const std::string message = error_of(kTrain, {"optimizer.name=sdg", "optimizer.momentum=0.9"});
  EXPECT_THAT(message, HasSubstr("did you mean \"sgd\"?"));
  EXPECT_THAT(message, Not(HasSubstr("optimizer.momentum: expected only")));
}

TEST(Conditions, ThePresetOfAModelIsNotTheUsersWord) {
  const TracedConfig loaded = traced({"model.preset = \"llama3-8b\"", "model.architecture = \"gpt2\""});
  EXPECT_THAT(loaded.warnings, IsEmpty());
  EXPECT_EQ(loaded.config.model.num_key_value_heads, loaded.config.model.num_attention_heads);
  EXPECT_EQ(loaded.config.model.rope_theta, Config{}.model.rope_theta);
}

}  // namespace
}  // namespace fsdp::config
