#include "setup/config/translate.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "base/util/error.h"
#include "base/util/json.h"
#include "base/util/text.h"
#include "setup/config/convert.h"
#include "setup/config/foreign_names.h"
#include "setup/config/load.h"
#include "setup/config/presets.h"
#include "setup/config/print.h"
#include "setup/config/yaml.h"

namespace fsdp::config {
namespace fs = std::filesystem;

namespace {

using Kind = Literal::Kind;

/// Far more than any of these programs has.
constexpr size_t kMostNames = 1000;

/// A program whose configs are translated.
struct Form {
  std::string_view program, syntax;
  std::vector<std::string> marks;  ///< names of which a file of this form has at least one
  /// Values of that program, for names that the file lacks, where ours are others.
  std::string_view defaults;
};

const Form* form_of(const std::vector<TomlEntry>& entries, std::string_view syntax) {
  static const std::vector<Form> kForms = {
      {"axolotl",
       "YAML",
       {"base_model", "micro_batch_size", "sequence_len"},
       "optimizer.weight_decay=0.0\noptimizer.betas=[0.9, 0.999]\nlr_scheduler.name=\"cosine\"\nrun.seed=42\n"
       "training.epochs=1.0\ndata.micro_batch_size=1\nmixed_precision.param_dtype=\"bfloat16\"\n"},
      {"LLaMA-Factory",
       "YAML",
       {"finetuning_type", "cutoff_len", "template"},
       "optimizer.weight_decay=0.0\noptimizer.betas=[0.9, 0.999]\nlr_scheduler.name=\"linear\"\nrun.seed=42\n"
       "training.epochs=3.0\noptimizer.lr=5e-5\ndata.sequence_length=2048\ndata.micro_batch_size=8\n"},
      {"Hugging Face's Trainer",
       "",
       {"per_device_train_batch_size", "num_train_epochs", "learning_rate"},
       "optimizer.weight_decay=0.0\noptimizer.betas=[0.9, 0.999]\nlr_scheduler.name=\"linear\"\nrun.seed=42\n"
       "training.epochs=3.0\noptimizer.lr=5e-5\ndata.micro_batch_size=8\n"},
      {"torchtitan",
       "TOML",
       {"local_batch_size", "seq_len", "flavor", "dump_folder", "tensor_parallel_degree", "hf_assets_path"},
       "training.steps=10000\noptimizer.lr=8e-4\ndata.sequence_length=2048\ndata.micro_batch_size=8\n"
       "lr_scheduler.name=\"linear\"\nlr_scheduler.warmup_steps=200\nmixed_precision.param_dtype=\"bfloat16\"\n"},
  };
  for (const Form& form : kForms) {
    if (!form.syntax.empty() && form.syntax != syntax) continue;
    for (const TomlEntry& entry : entries) {
      if (std::ranges::find(form.marks, entry.name) != form.marks.end()) return &form;
    }
  }
  return nullptr;
}

Literal literal_of(const nlohmann::json& json) {
  Literal literal;
  if (json.is_object()) {
    for (const auto& [name, value] : json.items()) literal.fields.push_back({name, literal_of(value)});
  } else if (json.is_array()) {
    literal.kind = Kind::kList;
    for (const auto& item : json) literal.items.push_back(literal_of(item));
  } else if (json.is_boolean()) {
    literal.kind = Kind::kBool;
    literal.boolean = json.get<bool>();
  } else if (json.is_number_integer()) {
    literal.kind = Kind::kInteger;
    literal.text = json.dump();
    literal.out_of_range = json.is_number_unsigned() && json.get<uint64_t>() > INT64_MAX;
    literal.integer = json.get<int64_t>();
  } else if (json.is_number()) {
    literal.kind = Kind::kFloat;
    literal.text = json.dump();
    literal.number = json.get<double>();
  } else {
    literal.kind = json.is_null() ? Kind::kNull : Kind::kString;
    if (json.is_string()) literal.text = json.get<std::string>();
  }
  return literal;
}

Literal text_literal(std::string text) {
  Literal literal;
  literal.kind = Kind::kString;
  literal.text = std::move(text);
  return literal;
}

Literal list_literal(const std::vector<std::string>& texts) {
  Literal literal;
  literal.kind = Kind::kList;
  for (const std::string& text : texts) literal.items.push_back(text_literal(text));
  return literal;
}

Literal toml_literal(std::string_view toml) {
  return parse_toml(Source::from_text("value", concat("[a]\nb = ", toml))).back().value;
}

/// The number that a literal is or, as a string, has; YAML reads 1e-4 as a string.
std::optional<double> number_of(const Literal& literal) {
  if (literal.kind == Kind::kInteger) return static_cast<double>(literal.integer);
  if (literal.kind == Kind::kFloat) return literal.number;
  double number = 0;
  const std::string& text = literal.text;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_number = literal.kind == Kind::kString && error == std::errc() && !text.empty() &&
                         end == text.data() + text.size();
  return is_number ? std::optional(number) : std::nullopt;
}

/// The value in one word, as in a table of foreign values.
std::string word_of(const Literal& literal) {
  return literal.kind == Kind::kBool ? literal.boolean ? "true" : "false" : literal.text;
}

bool contains(const std::string& text, std::string_view part) {
  const auto same = [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; };
  return std::search(text.begin(), text.end(), part.begin(), part.end(), same) != text.end();
}

/// Words of a list, or of a string with spaces or commas between them.
std::vector<std::string> words_of(const Literal& literal) {
  std::vector<std::string> words;
  for (const Literal& item : literal.items) words.push_back(item.text);
  std::string text = literal.kind == Kind::kString ? literal.text : "";
  std::ranges::replace(text, ',', ' ');
  std::istringstream stream(text);
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

/// Whether a value switches its name off.
bool is_off(const Literal& value) {
  const std::optional<double> number = number_of(value);
  return value.kind == Kind::kNull || (value.kind == Kind::kBool && !value.boolean) ||
         (number && *number <= 0) || (value.kind == Kind::kList && value.items.empty()) ||
         (value.kind == Kind::kTable && value.fields.empty()) ||
         (value.kind == Kind::kString && (value.text.empty() || value.text == "no" || value.text == "none"));
}

class Translator {
 public:
  explicit Translator(const Form& form) : form_(form) {}

  void read(const std::string& section, const std::string& name, const Literal& value);
  Translation finish(const fs::path& file);

 private:
  struct Kept {
    Value value;
    std::string from;  ///< comment
    bool is_default = false;
  };
  struct Rule {
    std::string names;  ///< with * for any characters, separated by spaces
    std::function<void(Translator&, const Literal&)> apply;
  };
  static const std::vector<Rule>& rules();
  static const Rule* rule_for(const std::string& section, const std::string& name);

  std::string path() const { return section_.empty() ? name_ : section_ + "." + name_; }
  /// The name that is being read with its value.
  std::string origin(const Literal& value) const {
    const std::string word = clipped(word_of(value), 40);
    return word.empty() ? path() : concat(path(), ": ", word);
  }
  void leave(const std::string& reason) { left_out_.emplace_back(path(), reason); }
  void leave_with_answer();
  void set(const std::string& key, Literal value, const std::string& from = "");
  void set(const std::string& key, const std::string& text) { set(key, text_literal(text)); }
  bool has(const std::string& key) const { return kept_.contains(key); }
  void read_by_table(const Literal& value);

  void read_model(const Literal& value);
  void read_targets(const Literal& value);
  void read_data(const Literal& value);
  void read_sharding(const Literal& value);
  void read_strategy(const Literal& value);
  void read_floor(const Literal& value);

  void complete_adapters();
  void complete_model();
  void complete_data();
  void complete_schedule();
  void add_defaults();
  void drop_without_effect();
  void check_whole(const fs::path& file);
  std::string sections() const;
  std::string head(const fs::path& file) const;

  const Form& form_;
  std::string section_, name_;  ///< of the name that is being read
  std::map<std::string, Kept> kept_;
  std::vector<std::pair<std::string, std::string>> left_out_;
  std::vector<std::string> off_, notes_;
  std::vector<double> betas_;
  std::string model_, hub_model_, flavor_, validation_share_ = "0.05";
  std::optional<double> floor_, decay_ratio_;
  bool has_adapter_ = false, has_rank_ = false, of_chats_ = false, validates_ = false, counts_inputs_ = false;
  bool evaluates_ = true;
  size_t names_ = 0;
};

void Translator::leave_with_answer() {
  const std::string answer = foreign_name_answer(section_, name_);
  leave(answer.empty() ? concat("there is no key with this meaning in fsdp-train") : answer);
}

/// Sets the key; a value of another type or name of the other programs is converted, and one that the key
/// does not allow is left out.
void Translator::set(const std::string& full_name, Literal value, const std::string& from) {
  const size_t dot = full_name.find('.');
  const Key& key = *find_key(full_name.substr(0, dot), full_name.substr(dot + 1));
  Config defaults;
  const Value example = value_of(key, defaults);
  const std::string word = word_of(value), with_value = origin(value);
  const std::string choice = foreign_value_choice(full_name, word, key.constraint.choices);
  const bool is_number = std::holds_alternative<int64_t>(example) || std::holds_alternative<double>(example);
  if (std::holds_alternative<std::string>(example) && !choice.empty()) {
    value = text_literal(choice);
  } else if (std::holds_alternative<bool>(example) && !choice.empty()) {
    value = toml_literal(choice);
  } else if (const auto number = number_of(value); is_number && number && value.kind == Kind::kString) {
    value.kind = Kind::kFloat;
    value.number = *number;
  }
  try {
    const Value converted = convert(key, value);
    const std::string text = toml_text(converted);
    const bool shows_it = number_of(value) || text == quoted_text(word) || text == word;
    const std::string comment = !from.empty() ? from : shows_it ? path() : with_value;
    const auto [at, is_new] = kept_.try_emplace(full_name, Kept{converted, comment});
    if (!is_new && at->second.value != converted) {
      leave(concat(full_name, " is ", toml_text(at->second.value), " by ", at->second.from));
    }
  } catch (const Misfit& misfit) {
    leave(misfit.message);
  }
}

/// Reads a name by the rule for it, or else by its row of the table, or else as a key of ours.
void Translator::read(const std::string& section, const std::string& name, const Literal& value) {
  section_ = section;
  name_ = name;
  if (value.kind == Kind::kNull) return;
  if (names_ >= kMostNames) {
    fail(ErrorKind::kUsage, "expected at most ", kMostNames, " names with a value; leave out the others");
  }
  if (const Rule* rule = rule_for(section, name)) {
    ++names_;
    rule->apply(*this, value);
    return;
  }
  const ForeignName* own = foreign_name(section, name);
  if (value.kind == Kind::kTable && own == nullptr) {  // a section inside
    for (const Literal::Field& field : value.fields) read(name, field.name, field.value);
    return;
  }
  ++names_;
  read_by_table(value);
}

void Translator::read_by_table(const Literal& value) {
  const ForeignName* row = foreign_name(section_, name_);
  std::string ours(row == nullptr ? "" : row->ours);
  if (row == nullptr) {  // a name that is ours too, in one section
    const Key* key = find_key(section_, name_);
    int found = key != nullptr;
    for (const Key& other : all_keys()) {
      if (found == 1 && key != nullptr) break;
      if (other.name == name_ && ++found == 1) key = &other;
    }
    if (found == 1) ours = key->full_name();
  }
  const size_t equals = ours.find(" = ");
  const bool is_harmless = row != nullptr && row->remark.ends_with("leave it out");
  const bool is_switch = ours.empty() || !row || equals != std::string::npos || !row->remark.empty();
  if (is_harmless || (is_switch && is_off(value) && (ours.empty() || equals != std::string::npos || row))) {
    off_.push_back(path());
  } else if (ours.empty() || (row != nullptr && !row->remark.empty())) {
    leave_with_answer();
  } else if (equals == std::string::npos) {
    set(ours, value);
  } else if (value.kind == Kind::kBool || value.text == "auto" || value.text == "full" ||
             value.text == "true") {
    set(ours.substr(0, equals), toml_literal(ours.substr(equals + 3)), path());
  } else {
    leave_with_answer();
  }
}

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
  notes_.push_back(
      concat("the texts are ", path(), ": ", names.empty() ? "those of the file" : util::join(names, ", ")));
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

void Translator::read_strategy(const Literal& value) {
  const bool saves = name_.starts_with("save");
  if (word_of(value) == "steps") return off_.push_back(path());
  if (word_of(value) != "no" && word_of(value) != "false") return leave_with_answer();
  if (saves) set("checkpoint.interval_steps", toml_literal("0"), origin(value));
  evaluates_ = evaluates_ && saves;
  if (!saves) off_.push_back(path());
}

void Translator::read_floor(const Literal& value) { floor_ = number_of(value); }

const std::vector<Translator::Rule>& Translator::rules() {
  using T = Translator;
  using L = Literal;
  static const std::vector<Rule> kRules = {
      {"base_model model_name_or_path initial_load_path model", [](T& t, const L& v) { t.read_model(v); }},
      {"rl reward_model process_reward_model num_labels stage",
       [](T& t, const L& v) {
         const std::string word = word_of(v);
         if (t.name_ == "stage" && (word == "sft" || word == "pt")) {
           t.of_chats_ = word == "sft";
           return t.off_.push_back(t.path());
         }
         if (is_off(v)) return t.off_.push_back(t.path());
         fail(ErrorKind::kUsage, t.path(), " must be off for a translation, but is ", word,
              ": fsdp-train has supervised training of language models alone, no preferences, rewards or "
              "classes; translate a config of supervised fine-tuning");
       }},
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
         t.section_ == "validation" ? t.leave("its texts become data.validation, as above") : t.read_data(v);
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
         if (contains(v.text, "8bit") || contains(v.text, "4bit") || contains(v.text, "paged")) {
           t.notes_.push_back(
               concat("the optimizer's states are 32 bits wide here, not as in ", v.text,
                      "; if they do not fit, fsdp.cpu_offload = true keeps them in host memory"));
         }
         t.set("optimizer.name", v);
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
         if (v.kind == Kind::kString)
           t.notes_.push_back("activations are recomputed, not moved to host memory");
         t.set("activation_checkpointing.mode", text_literal("full"), t.origin(v));
       }},
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

void Translator::complete_adapters() {
  name_ = "adapter";
  if (!has_adapter_ && has_rank_ && form_.program != "Hugging Face's Trainer" && has("lora.rank")) {
    kept_.erase("lora.rank");
    name_ = "lora_r";
    leave(
        "no adapter is trained there, since adapter or finetuning_type is not lora: write lora.rank to train one");
  }
  if (!has_adapter_) return;
  const std::string from = concat("default of ", form_.program);
  if (!has("lora.rank")) set("lora.rank", toml_literal("8"), from);
  const Value& rank = kept_.at("lora.rank").value;
  const bool doubles = form_.program == "LLaMA-Factory";
  if (!has("lora.alpha")) {
    set("lora.alpha", toml_literal(doubles ? concat(2 * std::get<int64_t>(rank)) : "8"), from);
  }
  const bool in_bfloat16 = has("mixed_precision.param_dtype") &&
                           kept_.at("mixed_precision.param_dtype").value == Value(std::string("bfloat16"));
  if (in_bfloat16) set("fsdp.param_storage", text_literal("bfloat16"), "frozen weights, as there");
}

void Translator::complete_model() {
  if (form_.program == "torchtitan") {
    std::string preset = model_ + "-" + flavor_;
    std::ranges::transform(preset, preset.begin(),
                           [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    section_ = "model";
    name_ = "flavor";
    if (has("model.init_from")) return;
    if (find_model_preset(preset) != nullptr) {
      set("model.preset", text_literal(preset), concat("model.name ", model_, ", flavor ", flavor_));
    } else if (!model_.empty()) {
      leave(concat("no preset is called ", preset,
                   ": write model.preset, or the sizes in [model], or model.init_from"));
      set("model.init_from", text_literal("MODEL"), "write the folder of such a model, or [model]");
    }
  } else if (model_.empty()) {
    section_ = name_ = "";
    set("model.init_from", text_literal("MODEL"), "write the model's folder: the file does not name it");
  }
}

void Translator::complete_data() {
  section_ = name_ = "";
  if (!betas_.empty() && betas_[0] >= 0 && betas_[1] >= 0) {
    set("optimizer.betas", toml_literal(concat("[", toml_text(betas_[0]), ", ", toml_text(betas_[1]), "]")),
        "adam_beta1 and adam_beta2");
  } else if (!betas_.empty()) {
    const bool is_first = betas_[0] >= 0;
    const std::string other = form_.program == "torchtitan" ? is_first ? "0.95" : "0.9"
                              : is_first                    ? "0.999"
                                                            : "0.9";
    set("optimizer.betas",
        toml_literal(concat("[", is_first ? toml_text(betas_[0]) : other, ", ",
                            is_first ? other : toml_text(betas_[1]), "]")),
        is_first ? "adam_beta1" : "adam_beta2");
  }
  const std::string data = of_chats_ ? "data/chats" : "data/texts";
  set("data.train", list_literal({data + ".train.u32"}), "written by fsdp-data tokenize, above");
  if (validates_ || has("evaluation.interval_steps")) {
    if (evaluates_) set("data.validation", list_literal({data + ".validation.u32"}), "written by it too");
  }
  if (has("model.init_from") && !has("data.tokenizer")) {
    set("data.tokenizer", text_literal(concat(model_.empty() ? "MODEL" : model_, "/tokenizer.json")),
        "beside the model");
  }
  if (of_chats_ && !counts_inputs_)
    set("data.train_on", text_literal("assistant"), "the loss counts answers, as there");
  if (of_chats_ && !has("data.documents"))
    set("data.documents", text_literal("split"), "a conversation per row: nothing is packed there");
}

void Translator::complete_schedule() {
  section_ = name_ = "";
  if (has("training.steps") && has("training.epochs")) {
    kept_.erase("training.epochs");
    off_.push_back("the number of epochs (max_steps counts)");
  }
  if (has("lr_scheduler.warmup_steps") && has("lr_scheduler.warmup_ratio")) {
    kept_.erase("lr_scheduler.warmup_ratio");
    off_.push_back("warmup_ratio (warmup_steps counts)");
  }
  name_ = "decay_ratio";
  if (decay_ratio_ && has("training.steps")) {
    const double steps =
        *decay_ratio_ * static_cast<double>(std::get<int64_t>(kept_.at("training.steps").value));
    kept_.erase("lr_scheduler.name");
    set("lr_scheduler.name", text_literal("wsd"), "decay_ratio");
    set("lr_scheduler.decay_steps", toml_literal(concat(static_cast<int64_t>(std::lround(steps)))),
        "decay_ratio of the steps");
  }
  name_ = "min_lr";
  const auto lr = kept_.find("optimizer.lr");
  if (floor_ && lr != kept_.end() && std::get<double>(lr->second.value) > 0) {
    set("lr_scheduler.min_lr_ratio", toml_literal(toml_text(*floor_ / std::get<double>(lr->second.value))),
        "the least rate divided by lr");
  } else if (floor_) {
    leave_with_answer();
  }
}

/// Adds values of the other program for keys that the file does not give.
void Translator::add_defaults() {
  std::istringstream lines{std::string(form_.defaults)};
  section_ = name_ = "";
  for (std::string line; std::getline(lines, line);) {
    const std::string key = line.substr(0, line.find('='));
    const bool counts_steps = key == "training.epochs" && has("training.steps");
    const bool is_off = key == "mixed_precision.param_dtype" && std::ranges::find(off_, "bf16") != off_.end();
    if (has(key) || counts_steps || is_off ||
        (key == "lr_scheduler.warmup_steps" && has("lr_scheduler.warmup_ratio")))
      continue;
    set(key, toml_literal(line.substr(line.find('=') + 1)), concat("default of ", form_.program));
    kept_.at(key).is_default = true;
  }
}

/// Leaves out keys whose condition does not hold, which the checker would refuse.
void Translator::drop_without_effect() {
  Config defaults;
  for (bool dropped = true; dropped;) {
    dropped = false;
    Config config;
    for (const Key& key : all_keys()) {
      if (const auto kept = kept_.find(key.full_name()); kept != kept_.end())
        set_value(key, config, kept->second.value);
    }
    for (const Key& key : all_keys()) {
      const auto kept = kept_.find(key.full_name());
      if (kept == kept_.end()) continue;
      Config copy = config;
      const bool is_default = kept->second.value == value_of(key, defaults);
      const bool has_effect = !key.matters.holds || key.matters.holds(copy);
      if (has_effect && !(is_default && std::holds_alternative<bool>(kept->second.value))) continue;
      const std::string name = kept->second.from.substr(0, kept->second.from.find(':'));
      if (kept->second.is_default) {
        // nothing of the file is lost
      } else if (is_default) {
        off_.push_back(name);
      } else {
        left_out_.emplace_back(name, concat(key.full_name(), " matters when ", key.matters.words));
      }
      kept_.erase(kept);
      dropped = true;
    }
  }
}

std::string Translator::sections() const {
  std::string text, section;
  for (const Key& key : all_keys()) {
    const auto kept = kept_.find(key.full_name());
    if (kept == kept_.end()) continue;
    if (key.section != section) text += concat("\n[", key.section, "]\n");
    section = key.section;
    std::string line = concat(key.name, " = ", toml_text(kept->second.value));
    line += std::string(line.size() < 50 ? 50 - line.size() : 1, ' ');
    std::string from = util::printable(kept->second.from);
    std::ranges::replace(from, '\n', ' ');
    text += concat(line, "  # ", from, "\n");
  }
  return text;
}

std::string Translator::head(const fs::path& file) const {
  const auto kept = kept_.find("data.tokenizer");
  const std::string tokenizer = kept == kept_.end() ? "TOKENIZER" : std::get<std::string>(kept->second.value);
  const std::string data = of_chats_ ? "data/chats" : "data/texts";
  std::string text = concat("Translated from ", file.filename().string(), ", ", "a config of ", form_.program,
                            ", by fsdp-train init --from-config.\n\nBefore the run:\n");
  if (!hub_model_.empty())
    text += concat("  hf download ", util::shell_word(hub_model_), " --local-dir ", util::shell_word(model_),
                   "\n");
  text += concat("  fsdp-data tokenize ", of_chats_ ? "chats.jsonl --chat" : "texts/*.txt", " --tokenizer ",
                 util::shell_word(tokenizer), " --output ", data, ".train.u32");
  if (kept_.contains("data.validation")) {
    text += concat(" \\\n      --validation-output ", data, ".validation.u32 --validation-fraction ",
                   validation_share_);
  }
  text += "\n";
  for (const std::string& note : notes_) text += "- " + note + "\n";
  if (!left_out_.empty()) text += "\nLeft out:\n";
  for (const auto& [name, reason] : left_out_) {
    std::string line = concat(name, ": ", reason);
    std::ranges::replace(line, '\n', ' ');
    text += "- " + line + "\n";
  }
  if (!off_.empty()) text += concat("\nOff there, or not needed here: ", util::join(off_, ", "), ".\n");
  return as_comment(text);
}

/// Tells what the checker says about the config; of a model that is not there yet, nothing is known.
void Translator::check_whole(const fs::path& file) {
  const auto weights = kept_.find("model.init_from");
  std::error_code ignored;
  const bool is_there =
      weights == kept_.end() || fs::exists(std::get<std::string>(weights->second.value), ignored);
  std::vector<std::string> overrides;
  if (!is_there) overrides = {"model.init_from=", "model.max_position_embeddings=10000000"};
  try {
    parse_config(sections(), file.string(), overrides);
  } catch (const util::Error& error) {
    if (error.kind() != ErrorKind::kUsage) return;
    left_out_.emplace_back("the config as a whole", concat("correct it: ", error.what()));
  }
}

Translation Translator::finish(const fs::path& file) {
  complete_schedule();
  complete_adapters();
  complete_model();
  complete_data();
  add_defaults();
  complete_adapters();
  drop_without_effect();
  Translation result{.form = concat("a config of ", form_.program)};
  check_whole(file);
  for (const auto& [name, reason] : left_out_) result.left_out.push_back(name);
  result.names = names_;
  result.toml = head(file) + sections();
  return result;
}

enum class Syntax { kYaml, kToml, kJson };

std::vector<TomlEntry> entries_of(const Source& source, Syntax syntax) {
  if (syntax == Syntax::kToml) return parse_toml(source);
  Literal root;
  if (syntax == Syntax::kYaml) {
    root = parse_yaml(source);
  } else {
    try {
      root = literal_of(util::parse_json(source.text(), {.deepest_level = 32, .most_values = 10'000}));
    } catch (const util::JsonError& error) {
      throw SyntaxError{error.what(), {}};
    }
  }
  std::vector<TomlEntry> entries;
  for (Literal::Field& field : root.fields)
    entries.push_back({"", std::move(field.name), std::move(field.value)});
  return entries;
}

}  // namespace

Translation translated(const fs::path& file) {
  const std::string extension = file.extension().string();
  if (extension == ".py") {
    fail(ErrorKind::kUsage, file.string(),
         ": expected YAML, TOML or JSON; found a program, as torchtitan's configs "
         "are since 2026, which is not run; write its values as TOML, with the names of torchtitan 0.2");
  }
  const Source source = Source::from_file(file);
  const std::string& text = source.text();
  const size_t first = text.find_first_not_of(" \t\r\n");
  const bool is_json = extension == ".json" || (first != std::string::npos && text[first] == '{');
  const Syntax syntax = is_json ? Syntax::kJson : extension == ".toml" ? Syntax::kToml : Syntax::kYaml;
  std::vector<TomlEntry> entries;
  try {
    entries = entries_of(source, syntax);
  } catch (const SyntaxError& error) {
    Report report;
    report.add(source, error.region, error.message);
    report.throw_if_any();
  }
  static constexpr std::string_view kSyntaxes[] = {"YAML", "TOML", "JSON"};
  const Form* form = form_of(entries, kSyntaxes[static_cast<size_t>(syntax)]);
  if (form == nullptr) {
    fail(
        ErrorKind::kUsage, file.string(),
        ": expected a YAML of axolotl or LLaMA-Factory, a TOML of torchtitan, or TrainingArguments of Hugging "
        "Face in JSON or YAML; found none of their names; docs/migrating.md has ours for each");
  }
  Translator translator(*form);
  for (const TomlEntry& entry : entries) {
    if (!entry.name.empty()) translator.read(entry.section, entry.name, entry.value);
  }
  Translation result = translator.finish(file);
  result.form += concat(" (", kSyntaxes[static_cast<size_t>(syntax)], ")");
  return result;
}

}  // namespace fsdp::config
