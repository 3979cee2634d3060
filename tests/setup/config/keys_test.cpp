#include "setup/config/keys.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "setup/config/config_text.h"
#include "setup/config/load.h"
#include "setup/config/print.h"

namespace fsdp::config {
namespace {

TEST(Keys, NamesAreUniqueAndSectionsStandTogether) {
  std::set<std::string> names;
  for (const Key& key : all_keys()) EXPECT_TRUE(names.insert(key.full_name()).second) << key.full_name();
  std::vector<std::string> sections = section_names();
  EXPECT_EQ(std::set<std::string>(sections.begin(), sections.end()).size(), sections.size());
}

TEST(Keys, EveryKeyHasItsOwnField) {
  for (const Key& key : all_keys()) {
    Config changed;
    Value value = value_of(key, changed);
    std::visit(
        [&key](auto& held) {
          using Held = std::decay_t<decltype(held)>;
          if constexpr (std::is_same_v<Held, bool>) {
            held = !held;
          } else if constexpr (std::is_arithmetic_v<Held>) {
            held += 1;
          } else if constexpr (std::is_same_v<Held, std::string>) {
            const std::vector<std::string>& choices = key.constraint.choices;
            const bool is_enum = std::holds_alternative<EnumField>(key.field);
            held = is_enum ? choices[held == choices[0] ? 1 : 0] : held + "x";
          } else {
            held.push_back({});
          }
        },
        value);
    set_value(key, changed, value);
    std::vector<std::string> differing = differing_keys(Config{}, changed);
    ASSERT_EQ(differing.size(), 1u) << key.full_name();
    EXPECT_TRUE(differing.front().starts_with(key.full_name() + ": ")) << differing.front();
  }
}

TEST(Keys, DefaultsAreAllowedExceptOfKeysThatMustBeGiven) {
  Config defaults;
  for (const Key& key : all_keys()) {
    EXPECT_EQ(allows(key.constraint, value_of(key, defaults)), key.full_name() != "data.train")
        << key.full_name();
    EXPECT_FALSE(key.description.empty());
    EXPECT_TRUE(key.follows.empty() || find_key(key.section, key.follows)) << key.full_name();
  }
}

struct Sample {
  std::string good;  ///< differs from the default where the key allows more than one value
  std::string bad;
  std::vector<std::string> with = {};  ///< overrides without which the good value contradicts another key
};

/// For every key a value that it takes and one that only its constraint refuses (for keys without one: a
/// value of another type).
const std::map<std::string, Sample>& samples() {
  static const std::vector<std::string> local_steps = {"training.local_steps=50",
                                                       "fsdp.strategy=hybrid_shard", "mesh.dcn=2"};
  static const std::map<std::string, Sample> table = {
      {"run.name", {"\"trial\"", "\"\""}},
      {"run.output_dir", {"\"out\"", "\"\""}},
      {"run.seed", {"7", "-1"}},
      {"run.plugins", {"[\"libmine.so\"]", "[\"\"]"}},
      {"model.preset", {"\"llama-15m\"", "\"llama-15b\""}},
      {"model.architecture", {"\"gpt2\"", "\"lama\""}},
      {"model.head_dim", {"64", "-2"}},
      {"model.attention_bias", {"true", "1"}},
      {"model.qkv_bias", {"true", "1"}},
      {"model.mlp_bias", {"true", "1"}},
      {"model.hidden_act", {"\"gelu_pytorch_tanh\"", "\"relu\""}},
      {"model.sliding_window", {"512", "-1"}},
      {"model.sliding_window_pattern",
       {"6", "-1", {"model.architecture=gemma2", "model.sliding_window=512"}}},
      {"model.use_parallel_residual", {"true", "1", {"model.architecture=gpt_neox"}}},
      {"model.num_experts", {"4", "-1", {"model.architecture=mixtral"}}},
      {"model.num_experts_per_tok", {"3", "0", {"model.architecture=mixtral", "model.num_experts=4"}}},
      {"model.moe_intermediate_size", {"64", "-1", {"model.architecture=qwen3_moe", "model.num_experts=4"}}},
      {"model.norm_topk_prob",
       {"true",
        "1",
        {"model.architecture=qwen3_moe", "model.num_experts=4", "model.moe_intermediate_size=64"}}},
      {"model.decoder_sparse_step",
       {"2", "0", {"model.architecture=qwen3_moe", "model.num_experts=4", "model.moe_intermediate_size=64"}}},
      {"model.router_aux_loss_coef", {"0.02", "-0.1", {"model.architecture=mixtral", "model.num_experts=4"}}},
      {"model.query_pre_attn_scalar", {"256", "-1", {"model.architecture=gemma2"}}},
      {"model.attention_multiplier", {"0.5", "-1", {"model.architecture=granite"}}},
      {"model.embedding_multiplier", {"12.0", "0", {"model.architecture=granite"}}},
      {"model.residual_multiplier", {"0.25", "0", {"model.architecture=granite"}}},
      {"model.logits_scaling", {"8.0", "0", {"model.architecture=granite"}}},
      {"model.attn_logit_softcapping", {"50.0", "-1.0", {"model.architecture=gemma2"}}},
      {"model.final_logit_softcapping", {"30.0", "-1.0", {"model.architecture=gemma2"}}},
      {"model.rope_local_base_freq", {"1e4", "-1.0", {"model.architecture=gemma3_text"}}},
      {"model.partial_rotary_factor", {"0.25", "1.5", {"model.architecture=gpt_neox"}}},
      {"model.no_rope_layer_interval", {"4", "-1", {"model.architecture=smollm3"}}},
      {"model.rope_type", {"\"llama3\"", "\"ntk\""}},
      {"model.rope_factor", {"8", "0", {"model.rope_type=linear"}}},
      {"model.rope_low_freq_factor", {"2", "0", {"model.rope_type=llama3"}}},
      {"model.rope_high_freq_factor", {"8", "0", {"model.rope_type=llama3"}}},
      {"model.rope_original_length", {"2048", "0", {"model.rope_type=llama3"}}},
      {"model.rope_attention_factor", {"1.5", "-1", {"model.rope_type=yarn"}}},
      {"model.rope_beta_fast", {"16", "0", {"model.rope_type=yarn"}}},
      {"model.rope_beta_slow", {"2", "0", {"model.rope_type=yarn"}}},
      {"model.rope_mscale", {"0.7", "-1", {"model.rope_type=yarn"}}},
      {"model.rope_mscale_all_dim", {"0.7", "-1", {"model.rope_type=yarn"}}},
      {"model.rope_truncate", {"false", "1", {"model.rope_type=yarn"}}},
      {"model.rope_short_factor",
       {"[1.5, 2.0]",
        "[\"a\"]",
        {"model.rope_type=longrope", "model.head_dim=4", "model.rope_long_factor=[1, 1]"}}},
      {"model.rope_long_factor",
       {"[1.5, 2.0]",
        "[\"a\"]",
        {"model.rope_type=longrope", "model.head_dim=4", "model.rope_short_factor=[1, 1]"}}},
      {"model.embedding_dropout", {"0.1", "1"}},
      {"model.attention_dropout", {"0.1", "1"}},
      {"model.hidden_dropout", {"0.1", "-0.1"}},
      {"model.vocab_size", {"512", "0"}},
      {"model.hidden_size", {"128", "0"}},
      {"model.intermediate_size", {"1_024", "-5"}},
      {"model.num_hidden_layers", {"2", "0"}},
      {"model.num_attention_heads", {"16", "1025"}},
      {"model.num_key_value_heads", {"4", "0"}},
      {"model.max_position_embeddings", {"2048", "0"}},
      {"model.rope_theta", {"5e5", "0.0"}},
      {"model.rms_norm_eps", {"1e-6", "0"}},
      {"model.layer_norm_epsilon", {"1e-6", "-1.0", {"model.architecture=gpt2"}}},
      {"model.initializer_range", {"0.5", "-0.1"}},
      {"model.tie_word_embeddings", {"true", "1"}},
      {"model.init_from", {"\"weights\"", "\"a\\nb\"", {"model.hidden_size=256"}}},
      {"model.init_unused", {"[\"score.*\"]", "[\"\"]", {"model.init_from=w", "model.hidden_size=256"}}},
      {"model.init_broadcast", {"true", "1"}},
      {"lora.rank", {"8", "-1"}},
      {"lora.alpha", {"32.0", "0.0", {"lora.rank=8"}}},
      {"lora.dropout", {"0.05", "1.0", {"lora.rank=8"}}},
      {"lora.targets", {"[\"*q_proj\"]", "[]", {"lora.rank=8"}}},
      {"lora.use_rslora", {"true", "1", {"lora.rank=8"}}},
      {"lora.quantize", {"\"nf4\"", "\"int4\"", {"lora.rank=8"}}},
      {"lora.dora", {"true", "1", {"lora.rank=8"}}},
      {"lora.init_from", {"\"adapter\"", "\"a\\nb\"", {"lora.rank=8"}}},
      {"data.dataset", {"\"token_files\"", "\"rows\""}},
      {"data.train", {"[\"b.bin\", 'c.bin']", "[]"}},
      {"data.train_weights", {"[2]", "[0]"}},
      {"data.documents", {"\"mask\"", "\"cut\""}},
      {"data.document_separator", {"50256", "-2", {"data.documents=mask", "model.vocab_size=60000"}}},
      {"data.prefetch_batches", {"0", "-1"}},
      {"data.validation", {"[\"v.bin\"]", "[\"\"]"}},
      {"data.tokenizer", {"\"gpt2/tokenizer.json\"", "\"\""}},
      {"data.sequence_length", {"128", "1_000_001"}},
      {"data.micro_batch_size", {"8", "0"}},
      {"data.max_tokens", {"512", "-1", {"data.documents=split"}}},
      {"data.train_on", {"\"assistant\"", "\"user\""}},
      {"data.allow_changed", {"true", "1"}},
      {"data.shuffle", {"false", "\"no\""}},
      {"data.shuffle_block_size", {"512", "0", {"data.train=[\"a.txt\"]"}}},
      {"data.text_column", {"\"tokens\"", "\"\"", {"data.train=[\"a.txt\"]"}}},
      {"data.skip_bad", {"10", "-1", {"data.train=[\"a.txt\"]"}}},
      {"data.cache_gib", {"64", "0", {"data.train=[\"a.txt\"]"}}},
      {"training.steps", {"400", "0"}},
      {"training.epochs", {"1.5", "-1"}},
      {"training.stop_after_hours", {"1.5", "-1"}},
      {"training.global_batch_size", {"64", "-1"}},
      {"training.gradient_accumulation_steps", {"2", "-1"}},
      {"training.local_steps", {"50", "-1", {"fsdp.strategy=hybrid_shard", "mesh.dcn=2"}}},
      {"training.batch_warmup_steps", {"5", "-1", {"training.gradient_accumulation_steps=2"}}},
      {"training.objective", {"\"simpo\"", "\"ppo\""}},
      {"training.loss", {"\"cross_entropy\"", "\"hinge\""}},
      {"training.label_smoothing", {"0.1", "1"}},
      {"training.z_loss", {"1e-4", "-1"}},
      {"training.max_grad_norm", {"0", "-1"}},
      {"training.norm_type", {"inf", "0.5"}},
      {"training.device", {"\"cpu\"", "\"gpu\""}},
      {"training.float32_matmul_precision", {"\"high\"", "\"medium\""}},
      {"training.fused_kernels", {"false", "0"}},
      {"training.logits_mib", {"2048", "-1"}},
      {"training.matmul", {"\"onednn\"", "\"blas\""}},
      {"training.product_trials", {"true", "1"}},
      {"training.float8", {"\"tensorwise\"", "\"blockwise\"", {"mixed_precision.param_dtype=\"bfloat16\""}}},
      {"training.float8_exclude",
       {"[\"*.0.*\"]",
        "[\"\"]",
        {"training.float8=\"tensorwise\"", "mixed_precision.param_dtype=\"bfloat16\""}}},
      {"training.cuda_graphs", {"true", "1"}},
      {"training.deterministic", {"true", "1"}},
      {"training.reproducible", {"\"world_size\"", "\"ranks\""}},
      {"training.no_sync", {"true", "1", {"training.gradient_accumulation_steps=2"}}},
      {"training.clip_grad_value", {"0.5", "-1", {"training.max_grad_norm=0"}}},
      {"training.skip_nonfinite", {"true", "1"}},
      {"training.skip_zscore", {"6", "-1"}},
      {"training.skip_window", {"64", "1", {"training.skip_zscore=6"}}},
      {"training.max_skipped_steps", {"0", "-1", {"training.skip_zscore=6"}}},
      {"training.slow_rank_factor", {"2", "0.5"}},
      {"training.slow_rank_steps", {"5", "0"}},
      {"distillation.teacher",
       {"\"stored\"", "\"file\"", {"training.objective=distill", "distillation.top_k=8"}}},
      {"distillation.teacher_model", {"\"weights\"", "\"a\\nb\"", {"training.objective=distill"}}},
      {"distillation.beta", {"0.25", "1.5", {"training.objective=distill", "distillation.teacher_model=t"}}},
      {"distillation.temperature",
       {"2.0", "0", {"training.objective=distill", "distillation.teacher_model=t"}}},
      {"distillation.alpha", {"0.5", "2", {"training.objective=distill", "distillation.teacher_model=t"}}},
      {"distillation.top_k", {"8", "-1", {"training.objective=distill", "distillation.teacher_model=t"}}},
      {"preference.beta", {"0.5", "0", {"training.objective=cpo"}}},
      {"preference.label_smoothing", {"0.1", "0.5", {"training.objective=cpo"}}},
      {"preference.length_normalised",
       {"true", "1", {"training.objective=dpo", "preference.reference_model=w"}}},
      {"preference.simpo_gamma", {"1.0", "-1", {"training.objective=simpo"}}},
      {"preference.cpo_alpha", {"0", "-1", {"training.objective=cpo"}}},
      {"preference.desirable_weight",
       {"1.5", "0", {"training.objective=kto", "preference.reference_model=w"}}},
      {"preference.undesirable_weight",
       {"0.7", "0", {"training.objective=kto", "preference.reference_model=w"}}},
      {"preference.exchanged_rows", {"4", "-1", {"training.objective=kto", "preference.reference_model=w"}}},
      {"preference.reference", {"\"stored\"", "\"none\"", {"training.objective=dpo"}}},
      {"preference.reference_model", {"\"weights\"", "\"a\\nb\"", {"training.objective=dpo"}}},
      {"evaluation.interval_steps", {"50", "-1", {"data.validation=[\"v\"]"}}},
      {"evaluation.max_samples", {"128", "-1", {"data.validation=[\"v\"]"}}},
      {"evaluation.accuracy", {"true", "1", {"data.validation=[\"v.bin\"]"}}},
      {"evaluation.best_metric",
       {"\"grad_norm\"",
        "\"bleu\"",
        {"checkpoint.keep_best=true", "evaluation.interval_steps=1", "data.validation=[\"v.bin\"]"}}},
      {"evaluation.patience", {"3", "-1", {"data.validation=[\"v\"]", "evaluation.interval_steps=1"}}},
      {"evaluation.min_delta", {"0.01", "-1", {"data.validation=[\"v\"]", "evaluation.interval_steps=1"}}},
      {"evaluation.tasks", {"[\"questions.jsonl\"]", "[\"\"]"}},
      {"optimizer.ema_decay", {"0.999", "1"}},
      {"optimizer.name", {"\"sgd\"", "\"rmsprop\""}},
      {"optimizer.lr", {"0.001", "nan"}},
      {"optimizer.betas", {"[0, 0.999]", "[0.9, 1.0]"}},
      {"optimizer.eps", {"1e-6", "0.0"}},
      {"optimizer.rho", {"0.95", "1.5", {"optimizer.name=adadelta"}}},
      {"optimizer.momentum", {"0.9", "1.0", {"optimizer.name=sgd"}}},
      {"optimizer.dampening", {"0.5", "1.5", {"optimizer.name=sgd", "optimizer.momentum=0.9"}}},
      {"optimizer.nesterov", {"true", "1", {"optimizer.name=sgd", "optimizer.momentum=0.9"}}},
      {"optimizer.weight_decay", {"0.01", "inf"}},
      {"optimizer.no_decay", {"[\"*.bias\"]", "[\"\"]"}},
      {"optimizer.groups",
       {"[{pattern=[\"*norm*\"], weight_decay=0}]", "[{pattern=[\"*norm*\"], weight_decay=-1}]"}},
      {"optimizer.adamw_parameters",
       {"[\"*embed*\"]", "[\"\"]", {"optimizer.name=muon", "optimizer.momentum=0.9"}}},
      {"optimizer.ns_steps", {"6", "100", {"optimizer.name=muon", "optimizer.momentum=0.9"}}},
      {"optimizer.ns_coefficients",
       {"[2, -1.5, 0.5]", "[2, -1.5]", {"optimizer.name=muon", "optimizer.momentum=0.9"}}},
      {"optimizer.adjust_lr_fn",
       {"\"match_rms_adamw\"", "\"none\"", {"optimizer.name=muon", "optimizer.momentum=0.9"}}},
      {"optimizer.offload", {"\"stream\"", "\"disk\"", {}}},
      {"optimizer.state_dtype", {"\"bfloat16\"", "\"int4\"", {}}},
      {"optimizer.relative_step", {"false", "0", {"optimizer.name=adafactor"}}},
      {"optimizer.scale_parameter", {"false", "0", {"optimizer.name=adafactor"}}},
      {"optimizer.clip_threshold", {"2", "0", {"optimizer.name=adafactor"}}},
      {"optimizer.decay_rate", {"-0.5", "0.8", {"optimizer.name=adafactor"}}},
      {"optimizer.beta1", {"0.9", "1.0", {"optimizer.name=adafactor"}}},
      {"optimizer.adafactor_eps", {"[1e-20, 1e-2]", "[1e-20]", {"optimizer.name=adafactor"}}},
      {"lr_scheduler.name", {"\"wsd\"", "\"cos\""}},
      {"lr_scheduler.warmup_steps", {"10", "-1"}},
      {"lr_scheduler.warmup_ratio", {"0.03", "1"}},
      {"lr_scheduler.hold_steps",
       {"20", "-1", {"lr_scheduler.name=tri_stage", "lr_scheduler.min_lr_ratio=0.1"}}},
      {"lr_scheduler.decay_steps", {"20", "-1", {"lr_scheduler.name=wsd"}}},
      {"lr_scheduler.min_lr_ratio", {"0.1", "1.5", {"lr_scheduler.name=cosine"}}},
      {"lr_scheduler.power", {"2", "0", {"lr_scheduler.name=polynomial"}}},
      {"outer_optimizer.name", {"\"sgd\"", "\"adam\"", local_steps}},
      {"outer_optimizer.lr", {"0.5", "0", local_steps}},
      {"outer_optimizer.momentum", {"0.8", "1", local_steps}},
      {"outer_optimizer.reduce_dtype", {"\"int8\"", "\"float16\"", local_steps}},
      {"outer_optimizer.fragments", {"4", "0", local_steps}},
      {"outer_optimizer.fragment_delay", {"5", "-1", local_steps}},
      {"outer_optimizer.mixing",
       {"0.25",
        "1",
        {"training.local_steps=50", "outer_optimizer.fragment_delay=2", "fsdp.strategy=hybrid_shard",
         "mesh.dcn=2"}}},
      {"fsdp.strategy", {"\"hybrid_shard\"", "\"half_shard\""}},
      {"fsdp.hybrid_optimizer", {"\"global\"", "\"local\"", {"fsdp.strategy=hybrid_shard", "mesh.dcn=2"}}},
      {"fsdp.front", {"\"spmd\"", "\"xla\""}},
      {"fsdp.layout", {"\"per_parameter\"", "\"per_block\""}},
      {"fsdp.shard_dimension", {"\"first\"", "\"last\"", {"fsdp.layout=\"per_parameter\""}}},
      {"fsdp.shard_1d_parameters", {"true", "1", {"fsdp.layout=\"per_parameter\""}}},
      {"fsdp.min_num_params", {"0", "-1"}},
      {"fsdp.wrap_stages", {"[\"block\"]", "[\"\"]"}},
      {"fsdp.exclude_stages", {"[]", "[\"\"]"}},
      {"fsdp.leaf_stages", {"[\"block\"]", "[\"\"]"}},
      {"fsdp.replicated_parameters", {"[\"*norm*\"]", "[\"\"]"}},
      {"fsdp.replica_check_interval", {"100", "-1", {"fsdp.strategy=hybrid_shard"}}},
      {"fsdp.reshard_after_forward", {"false", "2"}},
      {"fsdp.keep_after_forward", {"[\"*.3\"]", "[\"\"]"}},
      {"fsdp.reshard_root_after_forward", {"true", "1"}},
      {"fsdp.reshard_last_after_forward", {"true", "1"}},
      {"fsdp.forward_prefetch", {"\"explicit\"", "\"pre\""}},
      {"fsdp.backward_prefetch", {"\"post\"", "\"implicit\""}},
      {"fsdp.limit_all_gathers", {"false", "0"}},
      {"fsdp.param_storage", {"\"bfloat16\"", "\"half\""}},
      {"fsdp.cpu_offload", {"true", "1"}},
      {"fsdp.reduce_scatter_group", {"true", "1"}},
      {"fsdp.gather_dtype", {"\"int8\"", "\"bfloat16\""}},
      {"fsdp.reduce_dtype", {"\"int4\"", "\"bfloat16\""}},
      {"fsdp.quantize_links", {"\"all\"", "\"dcn\"", {"fsdp.gather_dtype=int8"}}},
      {"fsdp.error_feedback", {"true", "1", {"fsdp.reduce_dtype=int8"}}},
      {"fsdp.move_grads_to_cpu", {"true", "1", {"fsdp.cpu_offload=true"}}},
      {"fsdp.gradient_predivide_factor", {"2.0", "-1"}},
      {"mixed_precision.param_dtype", {"\"bfloat16\"", "\"half\""}},
      {"mixed_precision.reduce_dtype", {"\"float16\"", "\"float64\""}},
      {"mixed_precision.buffer_dtype", {"\"bfloat16\"", "\"int8\""}},
      {"mixed_precision.cast_forward_inputs", {"false", "0"}},
      {"mixed_precision.keep_low_precision_grads",
       {"true", "1", {"mixed_precision.reduce_dtype=\"bfloat16\""}}},
      {"mixed_precision.keep_low_precision_shards",
       {"\"true\"", "1", {"mixed_precision.param_dtype=\"bfloat16\""}}},
      {"mixed_precision.keep_float32",
       {"[\"*norm*\"]", "[\"\"]", {"mixed_precision.param_dtype=\"bfloat16\""}}},
      {"loss_scaler.enabled", {"\"false\"", "\"maybe\"", {"mixed_precision.param_dtype=float16"}}},
      {"loss_scaler.init_scale", {"1024", "0", {"mixed_precision.param_dtype=float16"}}},
      {"loss_scaler.growth_factor", {"1.5", "1", {"mixed_precision.param_dtype=float16"}}},
      {"loss_scaler.backoff_factor", {"0.25", "1", {"mixed_precision.param_dtype=float16"}}},
      {"loss_scaler.growth_interval", {"100", "0", {"mixed_precision.param_dtype=float16"}}},
      {"loss_scaler.min_scale", {"0.5", "0", {"mixed_precision.param_dtype=float16"}}},
      {"activation_checkpointing.mode", {"\"full\"", "\"all\""}},
      {"activation_checkpointing.feed_forward_tokens", {"512", "-1", {}}},
      {"activation_checkpointing.stage_types",
       {"[\"feed_forward\"]", "[\"\"]", {"activation_checkpointing.mode=full"}}},
      {"activation_checkpointing.memory_budget", {"0.3", "1.5", {"activation_checkpointing.mode=selective"}}},
      {"mesh.dcn", {"2", "0"}},
      {"mesh.data", {"4", "0"}},
      {"mesh.context", {"2", "0"}},
      {"mesh.context_attention", {"\"gather\"", "\"rings\"", {"mesh.context=2"}}},
      {"mesh.model", {"2", "0"}},
      {"mesh.sequence_parallel", {"false", "0", {"mesh.model=2"}}},
      {"comm.backend", {"\"hierarchical\"", "\"tcp\""}},
      {"comm.timeout_seconds", {"30", "0"}},
      {"checkpoint.schedule", {"\"continuous\"", "\"always\"", {"checkpoint.asynchronous=true"}}},
      {"checkpoint.interval_steps", {"0", "-1"}},
      {"checkpoint.interval_minutes", {"7.5", "-1"}},
      {"checkpoint.save_at_end", {"false", "0"}},
      {"checkpoint.keep_last", {"0", "-1"}},
      {"checkpoint.keep_every", {"1000", "-1"}},
      {"checkpoint.keep_best", {"true", "1", {"data.validation=[\"v\"]", "evaluation.interval_steps=1"}}},
      {"checkpoint.kind", {"\"full\"", "\"whole\""}},
      {"checkpoint.asynchronous", {"true", "1"}},
      {"checkpoint.permissions", {"\"0660\"", "\"0777\""}},
      {"checkpoint.verify_saved", {"\"background\"", "\"always\""}},
      {"checkpoint.resume", {"\"never\"", "\"\""}},
      {"checkpoint.upload_to", {"\"s3://bucket/run\"", "\"a\\nb\""}},
      {"checkpoint.init_from", {"\"out/run\"", "\"a\\nb\""}},
      {"checkpoint.init_only", {"[\"layers.*\"]", "[\"\"]", {"checkpoint.init_from=\"run\""}}},
      {"checkpoint.init_missing", {"[\"lm_head.*\"]", "[\"\"]", {"checkpoint.init_from=\"run\""}}},
      {"logging.interval_steps", {"10", "0"}},
      {"logging.sample_every", {"10", "-1"}},
      {"logging.sample_prompt", {"\"ROMEO:\"", "\"a\\u0001b\"", {"logging.sample_every=9"}}},
      {"logging.sample_tokens", {"8", "0", {"logging.sample_every=9"}}},
      {"logging.timestamps", {"true", "2"}},
      {"logging.trace_communication", {"true", "2"}},
      {"logging.peak_tflops", {"1.5", "-1"}},
      {"logging.csv", {"true", "1"}},
      {"logging.tensorboard", {"true", "1"}},
      {"logging.metrics_port", {"9400", "65536"}},
      {"logging.metrics_host", {"\"0.0.0.0\"", "\"\"", {"logging.metrics_port=9400"}}},
      {"logging.metrics_ranks", {"\"all\"", "\"each\"", {"logging.metrics_port=9400"}}},
      {"logging.metrics_textfile", {"\"run.prom\"", "true"}},
      {"logging.profile_steps", {"[3, 4]", "[0]"}},
      {"logging.nvtx", {"true", "1"}},
      {"logging.memory_snapshot", {"true", "1"}},
  };
  return table;
}

TEST(Keys, EveryKeyTakesAGoodValueAndRefusesABadOne) {
  EXPECT_EQ(samples().size(), all_keys().size());
  set_plugin_loader([](const std::vector<std::string>& named, PluginsNamedBy) { return named; });
  Config base = parse_config(kTrain, "c.toml");
  for (const Key& key : all_keys()) {
    SCOPED_TRACE(key.full_name());
    ASSERT_TRUE(samples().contains(key.full_name()));
    const Sample& sample = samples().at(key.full_name());
    std::vector<std::string> overrides = sample.with;
    overrides.push_back(key.full_name() + "=" + sample.good);
    Config changed = parse_config(kTrain, "c.toml", overrides);
    bool is_fixed = key.constraint.choices.size() == 1;
    EXPECT_EQ(value_of(key, changed) == value_of(key, base), is_fixed);

    std::string message = error_of(kTrain, {key.full_name() + "=" + sample.bad});
    EXPECT_TRUE(message.starts_with("command line: " + key.full_name() + " must be ")) << message;
    EXPECT_NE(message.find(", but "), std::string::npos) << message;
    EXPECT_TRUE(!is_fixed || message.find("(this version ") != std::string::npos) << message;
  }
  set_plugin_loader(nullptr);
}

TEST(Keys, AProgramThatLoadsNoPluginsRefusesThem) {
  const std::string message = error_of(std::string("[run]\nplugins = [\"libmine.so\"]\n") + kTrain);
  EXPECT_TRUE(message.starts_with("c.toml:2: run.plugins must be empty")) << message;
}

TEST(Keys, EveryKeyRefusesAValueOfAnotherType) {
  Config defaults;
  for (const Key& key : all_keys()) {
    const Value value = value_of(key, defaults);
    const bool is_string =
        std::holds_alternative<std::string>(value) || std::holds_alternative<std::vector<std::string>>(value);
    std::string section = "[" + key.section + "]\n" + key.name + " = ";
    for (const std::string& wrong : {std::string(is_string ? "3" : "\"text\""), std::string("1979-05-27"),
                                     std::string("{ a = 1 }"), std::string("[[1]]")}) {
      std::string train = key.section == "data" ? "" : kTrain;
      std::string message = error_of(section + wrong + "\n" + train);
      EXPECT_NE(message.find("c.toml:2: " + key.full_name() + " must be "), std::string::npos) << message;
    }
  }
}

}  // namespace
}  // namespace fsdp::config
