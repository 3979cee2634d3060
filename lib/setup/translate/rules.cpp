#include <algorithm>
#include <cctype>
#include <sstream>

#include "base/util/error.h"
#include "setup/config/foreign_names.h"
#include "setup/translate/translator.h"

// The names whose value is not that of the key. A rule has the names of several programs, and what it does.

namespace fsdp::config {
namespace fs = std::filesystem;

namespace {

using Kind = Literal::Kind;

bool contains(const std::string& text, std::string_view part) {
  const auto same = [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; };
  return std::search(text.begin(), text.end(), part.begin(), part.end(), same) != text.end();
}

}  // namespace

void Translator::read_model(const Literal& value) {
  std::error_code ignored;
  model_ = value.text;
  // A name of a hub has one slash, and is no path of this machine.
  if (std::ranges::count(model_, '/') == 1 && !model_.starts_with('.') && !model_.starts_with('/') &&
      !fs::exists(model_, ignored)) {
    hub_model_ = model_;
    model_ = "models/" + model_.substr(model_.find('/') + 1);
  }
  set("model.init_from", text_literal(model_), hub_model_.empty() ? path() : origin(value));
}

/// PEFT's list has ends of names, ours patterns; its regular expressions are none.
void Translator::read_targets(const Literal& value) {
  std::vector<std::string> patterns;
  for (const std::string& word : words_of(value)) {
    if (word.find_first_of("()|[]\\^$+") != std::string::npos || word.find(".*") != std::string::npos) {
      return leave("it is a regular expression: write lora.targets, patterns such as \"*q_proj\"");
    }
    patterns.push_back(word == "all" || word == "all-linear" ? "*" : "*" + word);
  }
  if (!patterns.empty()) set("lora.targets", list_literal(patterns), path());
}

/// Whatever is recomputed beside it, as others have it: inputs of blocks in host memory.
void Translator::offload_activations(const Literal& value) {
  kept_.erase("activation_checkpointing.mode");
  set("activation_checkpointing.mode", text_literal("offload"), origin(value));
  set("activation_checkpointing.memory_budget", toml_literal("0.0"), origin(value));
}

/// Data sets are tokenized before the run.
void Translator::read_data(const Literal& value) {
  std::vector<std::string> names = words_of(value);
  names.erase(std::remove(names.begin(), names.end(), ""), names.end());
  const bool is_text = name_ == "pretraining_dataset" || form_.program == "torchtitan";
  bool has_text = is_text;
  for (const Literal& item : value.items) {
    for (const Literal::Field& field : item.fields) {
      if (field.name == "path") names.push_back(field.value.text);
      has_text |= field.name == "type" && field.value.text == "completion";
    }
  }
  of_chats_ |= !has_text;
  notes_.push_back(concat("the texts to tokenize are those of ", path(), ": ",
                          names.empty() ? "see the file" : util::join(names, ", ")));
}

void Translator::read_sharding(const Literal& value) {
  if (is_off(value)) return off_.push_back(path());
  if (value.kind == Kind::kTable) {  // the content of DeepSpeed's config
    for (const Literal::Field& field : value.fields) {
      if (field.name != "zero_optimization") continue;
      for (const Literal::Field& inner : field.value.fields) {
        if (inner.name == "stage")
          set("fsdp.strategy", inner.value, concat(path(), ", ZeRO ", inner.value.text));
        if (inner.name.starts_with("offload_") && !is_off(inner.value))
          set("fsdp.cpu_offload", toml_literal("true"), path());
        read_zero_plus_plus(inner);
      }
    }
    return;
  }
  for (const std::string& word : words_of(value)) {
    const bool is_file = word.ends_with(".json");  // its name says the stage
    if (contains(word, "offload")) {
      set("fsdp.cpu_offload", toml_literal("true"), concat(path(), ": ", word));
      notes_.push_back(
          "fsdp.cpu_offload keeps shards and optimizer state in host memory, as DeepSpeed's offload does; leave it out if they fit");
    }
    for (const char* stage : {"1", "2", "3"}) {
      if (is_file && (contains(word, concat("zero", stage)) || contains(word, concat("z", stage, "_"))))
        set("fsdp.strategy", text_literal(stage), concat(path(), ": ", word));
    }
    if (!is_file && word != "auto_wrap" && word != "offload")
      set("fsdp.strategy", text_literal(word), concat(path(), ": ", word));
  }
}

/// One key of ZeRO++, whose gradients have 4 bits.
void Translator::read_zero_plus_plus(const Literal::Field& key) {
  const std::string origin = concat(path(), ", ", key.name);
  if (is_off(key.value)) return;
  if (key.name == "zero_quantized_weights") set("fsdp.gather_dtype", text_literal("int8"), origin);
  if (key.name == "zero_quantized_gradients") set("fsdp.reduce_dtype", text_literal("int4"), origin);
  if (key.name == "zeropp_loco_param") set("fsdp.error_feedback", toml_literal("true"), origin);
  if (key.name == "zero_hpz_partition_size" && number_of(key.value).value_or(1) > 1) {
    notes_.push_back(
        concat("zero_hpz_partition_size is fsdp.strategy = \"hybrid_shard\" with fsdp.hybrid_optimizer = "
               "\"global\" and mesh.data = ",
               key.value.text, ", mesh.dcn = -1"));
  }
}

void Translator::read_strategy(const Literal& value) {
  const bool saves = name_.starts_with("save");
  if (word_of(value) == "steps") return off_.push_back(path());
  if (word_of(value) != "no" && word_of(value) != "false") return leave_with_answer();
  if (saves) set("checkpoint.interval_steps", toml_literal("0"), origin(value));
  evaluates_ = evaluates_ && saves;
  if (!saves) off_.push_back(path());
}

void Translator::refuse_stage(const std::string& word) const {
  fail(
      ErrorKind::kUsage, path(), " must be off or a kind of preference tuning for a translation, but is ",
      word,
      ": fsdp-train learns from texts, conversations and preferences in its data, not from rewards of "
      "generated answers or classes; translate a config of supervised fine-tuning, DPO, KTO, ORPO, SimPO or CPO");
}

/// The kind of training: rl of axolotl, stage of LLaMA-Factory.
void Translator::read_stage(const Literal& value) {
  const std::string word = word_of(value);
  if (name_ == "stage" && (word == "sft" || word == "pt")) {
    of_chats_ = word == "sft";
    return off_.push_back(path());
  }
  if (is_off(value)) return off_.push_back(path());
  const std::vector<std::string> kinds = name_ == "stage"
                                             ? std::vector<std::string>{"dpo", "kto"}
                                             : std::vector<std::string>{"dpo", "ipo", "kto", "orpo", "simpo"};
  if (std::ranges::find(kinds, word) == kinds.end()) refuse_stage(word);
  objective_ = word;
  objective_from_ = origin(value);
}

void Translator::read_losses(const Literal& value) {
  std::vector<std::string> words = words_of(value);
  if (words.empty() || words.front().ends_with("nll")) return off_.push_back(path());
  if (words.front() == "dft") return leave("training.loss has no such loss");
  losses_ = std::move(words);
  losses_from_ = origin(value);
  losses_path_ = path();
}

/// A folder of this machine, or a model of a hub.
void Translator::read_reference(const Literal& value) {
  std::error_code ignored;
  std::string folder = value.text;
  if (std::ranges::count(folder, '/') == 1 && !folder.starts_with('.') && !folder.starts_with('/') &&
      !fs::exists(folder, ignored)) {
    folder = "models/" + folder.substr(folder.find('/') + 1);
    notes_.push_back(concat("hf download ", util::shell_word(value.text), " --local-dir ",
                            util::shell_word(folder), " fetches the reference"));
  }
  set("preference.reference_model", text_literal(folder), origin(value));
}

void Translator::read_floor(const Literal& value) { floor_ = number_of(value); }

const std::vector<Translator::Rule>& Translator::rules() {
  using T = Translator;
  using L = Literal;
  static const std::vector<Rule> kRules = {
      {"base_model model_name_or_path initial_load_path model", [](T& t, const L& v) { t.read_model(v); }},
      {"rl stage", [](T& t, const L& v) { t.read_stage(v); }},
      {"reward_model process_reward_model num_labels",
       [](T& t, const L& v) { is_off(v) ? t.off_.push_back(t.path()) : t.refuse_stage(word_of(v)); }},
      {"pref_loss loss_type dpo_loss_type", [](T& t, const L& v) { t.read_losses(v); }},
      {"label_smoothing dpo_label_smoothing",
       [](T& t, const L& v) {
         is_off(v) || number_of(v) == 0 ? t.off_.push_back(t.path())
                                        : void(t.label_smoothing_ = {t.path(), v});
       }},
      {"ref_model ref_model_name_or_path", [](T& t, const L& v) { t.read_reference(v); }},
      {"rpo_alpha dpo_rpo_alpha pref_ftx pref_bco_weight dpop_lambda",
       [](T& t, const L& v) {
         number_of(v).value_or(0) == 0 ? t.off_.push_back(t.path()) : t.leave_with_answer();
       }},
      {"f_divergence_type",
       [](T& t, const L& v) {
         word_of(v).ends_with("reverse_kl") ? t.off_.push_back(t.path()) : t.leave_with_answer();
       }},
      {"truncation_mode",
       [](T& t, const L& v) {
         word_of(v) == "keep_start" ? t.off_.push_back(t.path()) : t.leave_with_answer();
       }},
      {"alpha",
       [](T& t, const L& v) { number_of(v) == 0 ? t.off_.push_back(t.path()) : t.read_by_table(v); }},
      // Without the switch that they belong to they have no effect.
      {"ref_model_mixup_alpha ref_model_sync_steps f_alpha_divergence_coef discopop_tau",
       [](T& t, const L&) { t.off_.push_back(t.path()); }},
      {"adapter finetuning_type peft_config.name",
       [](T& t, const L& v) {
         const std::string word = word_of(v);
         if (word == "lora" || word == "qlora") {
           t.has_adapter_ = true;
           if (word == "qlora") return t.set("lora.quantize", text_literal("nf4"), t.origin(v));
           return t.off_.push_back(t.path() + " (see lora.rank)");
         }
         is_off(v) || word == "full" ? t.off_.push_back(t.path()) : t.leave_with_answer();
       }},
      {"lora_r lora_rank r",
       [](T& t, const L& v) {
         t.has_rank_ = true;
         t.set("lora.rank", v);
       }},
      {"lora_target_modules target_modules lora_target", [](T& t, const L& v) { t.read_targets(v); }},
      {"datasets pretraining_dataset train_dataset dataset dataset_path dataset_dir training.dataset training.dataset_path",
       [](T& t, const L& v) {
         t.section_ == "validation" ? t.leave("its texts become data.validation; see above") : t.read_data(v);
       }},
      {"val_set_size val_size",
       [](T& t, const L& v) {
         const double share = number_of(v).value_or(0);
         t.validates_ |= share > 0;
         if (share >= 1)
           return t.leave("a number of texts: --validation-fraction of fsdp-data tokenize takes their share");
         if (share > 0) t.validation_share_ = v.text;
       }},
      {"test_datasets eval_dataset validation.enable",
       [](T& t, const L& v) {
         t.validates_ |= !is_off(v);
         t.evaluates_ &= !is_off(v);
         t.off_.push_back(t.path() + " (see data.validation)");
       }},
      {"train_on_inputs train_on_prompt",
       [](T& t, const L& v) {
         t.counts_inputs_ = v.boolean;
         t.off_.push_back(t.path() + " (see data.train_on)");
       }},
      {"sample_packing packing",
       [](T& t, const L& v) {
         t.set("data.documents", text_literal(is_off(v) ? "split" : "mask"), t.origin(v));
       }},
      {"optimizer optim optimizer.name",
       [](T& t, const L& v) {
         const bool has_codes = contains(v.text, "8bit") || contains(v.text, "4bit");
         if (contains(v.text, "4bit")) {
           t.notes_.push_back(concat("the optimizer's states have 8 bits here, not 4 as those of ", v.text));
         }
         if (contains(v.text, "paged")) {
           t.notes_.push_back(
               concat("the optimizer's states are not paged here, unlike those of ", v.text,
                      "; if they do not fit, optimizer.offload = \"stream\" keeps them in host memory"));
         }
         t.set("optimizer.name", v);
         if (has_codes) t.set("optimizer.state_dtype", text_literal("int8"), t.origin(v));
         if (v.text == "muon") t.set("optimizer.momentum", toml_literal("0.95"), "muon's usual momentum");
       }},
      {"adam_beta1 adam_beta2 beta1 beta2",
       [](T& t, const L& v) {
         t.betas_.resize(2, -1);
         t.betas_[t.name_.ends_with('2')] = number_of(v).value_or(-1);
       }},
      {"batch_size",
       [](T& t, const L&) {
         t.leave(
             "samples of a step per process: training.gradient_accumulation_steps is that number divided by "
             "data.micro_batch_size");
       }},
      {"warmup_steps warmup_ratio",
       [](T& t, const L& v) {
         const double number = number_of(v).value_or(0);
         if (number <= 0) return t.off_.push_back(t.path());
         t.set(number < 1 ? "lr_scheduler.warmup_ratio" : "lr_scheduler.warmup_steps", v);
       }},
      {"max_steps",
       [](T& t, const L& v) { is_off(v) ? t.off_.push_back(t.path()) : t.set("training.steps", v); }},
      {"global_batch_size",
       [](T& t, const L& v) {
         is_off(v) ? t.off_.push_back(t.path()) : t.set("training.global_batch_size", v);
       }},
      {"eval_strategy evaluation_strategy save_strategy", [](T& t, const L& v) { t.read_strategy(v); }},
      {"eval_steps save_steps",
       [](T& t, const L& v) {
         const double number = number_of(v).value_or(1);
         if (number > 0 && number < 1) return t.leave("a share of the run: write the number of steps");
         t.set(t.name_[0] == 'e' ? "evaluation.interval_steps" : "checkpoint.interval_steps", v);
       }},
      {"fsdp deepspeed", [](T& t, const L& v) { t.read_sharding(v); }},
      {"*transformer_layer_cls_to_wrap",
       [](T& t, const L& v) {
         if (!words_of(v).empty()) t.set("fsdp.wrap_stages", list_literal({"block"}), t.origin(v));
       }},
      {"report_to",
       [](T& t, const L& v) {
         for (const std::string& word : words_of(v)) {
           if (word == "tensorboard" || word == "all") {
             t.set("logging.tensorboard", toml_literal("true"), t.origin(v));
           } else if (word != "none") {
             t.leave(foreign_name_answer("", "wandb"));
           }
         }
       }},
      {"lr_scheduler_kwargs",
       [](T& t, const L& v) {
         for (const L::Field& field : v.fields) t.read("lr_scheduler_kwargs", field.name, field.value);
       }},
      {"min_lr lr_min eta_min", [](T& t, const L& v) { t.read_floor(v); }},
      {"decay_ratio", [](T& t, const L& v) { t.decay_ratio_ = number_of(v); }},
      {"model.name", [](T& t, const L& v) { t.model_ = v.text; }},
      {"model.flavor", [](T& t, const L& v) { t.flavor_ = v.text; }},
      {"tokenizer_config tokenizer_path hf_assets_path tokenizer_name",
       [](T& t, const L& v) { t.set("data.tokenizer", v); }},
      {"model.converters converters",
       [](T& t, const L& v) {
         for (const std::string& word : words_of(v)) {
           contains(word, "float8")
               ? t.set("training.float8", text_literal("float8"), t.origin(text_literal(word)))
               : t.leave(concat(word, " has no counterpart; training.float8 has 8 bits"));
         }
       }},
      {"resume_from_checkpoint",
       [](T& t, const L& v) {
         if (is_off(v)) return t.off_.push_back(t.path());
         t.leave("checkpoints of the other program are not resumed: model.init_from takes their weights");
       }},
      {"gradient_checkpointing",
       [](T& t, const L& v) {
         if (is_off(v)) return t.off_.push_back(t.path());
         if (v.kind == Kind::kString && v.text != "true") return t.offload_activations(v);
         if (t.kept_.contains("activation_checkpointing.memory_budget")) return;
         t.set("activation_checkpointing.mode", text_literal("full"), t.origin(v));
       }},
      {"activation_offloading enable_activation_offload enable_activation_offloading offload_activations",
       [](T& t, const L& v) { is_off(v) ? t.off_.push_back(t.path()) : t.offload_activations(v); }},
      {"data_parallel_replicate_degree dp_replicate_size",
       [](T& t, const L& v) {
         if (number_of(v).value_or(1) <= 1) return t.off_.push_back(t.path());
         t.set("mesh.dcn", v);
         t.set("fsdp.strategy", text_literal("hybrid_shard"), t.path());
       }},
      {"plugins",
       [](T& t, const L&) {
         t.leave("plug-ins of the other program are not loaded: run.plugins names those of this one");
       }},
      {"metric_for_best_model",
       [](T& t, const L& v) {
         t.set("evaluation.best_metric", v.text == "loss" ? text_literal("eval_loss") : v);
       }},
      {"fsdp_version fsdp_config.version", [](T& t, const L&) { t.off_.push_back(t.path()); }},
  };
  return kRules;
}

const Translator::Rule* Translator::rule_for(const std::string& section, const std::string& name) {
  for (const Rule& rule : rules()) {
    std::istringstream names(rule.names);
    for (std::string pattern; names >> pattern;) {
      const std::string full = section.empty() ? name : section + "." + name;
      if (util::matches_any(pattern.find('.') == std::string::npos ? name : full, {pattern})) return &rule;
    }
  }
  return nullptr;
}

}  // namespace fsdp::config
