#include "setup/translate/translator.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <sstream>

#include "base/util/error.h"
#include "setup/config/convert.h"
#include "setup/config/foreign_names.h"
#include "setup/config/keys.h"
#include "setup/config/load.h"
#include "setup/config/presets.h"
#include "setup/config/print.h"

namespace fsdp::config {
namespace fs = std::filesystem;

namespace {

using Kind = Literal::Kind;

/// Far more than any of these programs has.
constexpr size_t kMostNames = 1000;

}  // namespace

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

void Translator::complete_adapters() {
  name_ = "adapter";
  if (!has_adapter_ && has_rank_ && form_.program != "Hugging Face's Trainer" && has("lora.rank")) {
    kept_.erase("lora.rank");
    name_ = "lora_r";
    leave(
        "the other program trains no adapter, because adapter or finetuning_type is not lora; set lora.rank to "
        "train one");
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
  if (in_bfloat16)
    set("fsdp.param_storage", text_literal("bfloat16"),
        "type of the frozen weights, as in the other program");
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

/// The objective of TRL's loss_type or LLaMA-Factory's pref_loss. Throws Error(kUsage) for one that is absent
/// here.
std::string Translator::objective_of_losses() const {
  const bool by_cpo_trainer = has("preference.cpo_alpha") || has("preference.simpo_gamma");
  const bool of_llama_factory = form_.program == "LLaMA-Factory";
  const bool of_trl = form_.program == "Hugging Face's Trainer";
  if (of_trl && losses_.empty() && !by_cpo_trainer) {
    fail(ErrorKind::kUsage,
         "beta must come with loss_type for a translation, because trainers of TRL are told apart by it; add "
         "loss_type: sigmoid for DPOTrainer, kto for KTOTrainer or orpo for ORPOTrainer");
  }
  const std::string loss = losses_.empty() ? "sigmoid" : util::join(losses_, " with ");
  if (of_llama_factory || !by_cpo_trainer || losses_.empty()) {
    static const std::vector<std::string> kSame = {"hinge",    "ipo",      "exo_pair", "robust",
                                                   "apo_zero", "apo_down", "kto",      "orpo"};
    static const std::vector<std::string> kOfLlamaFactory = {"hinge", "ipo", "orpo", "simpo"};
    const std::vector<std::string>& same = of_llama_factory ? kOfLlamaFactory : kSame;
    if (std::ranges::find(same, loss) != same.end()) return loss;
    if (loss == "sigmoid") return by_cpo_trainer && !of_llama_factory ? "cpo" : "dpo";
    if (loss == "sigmoid_norm" && !of_llama_factory) return "dpo";
  } else if (loss == "sigmoid" || loss == "simpo") {
    return loss == "simpo" ? "simpo" : "cpo";
  }
  fail(ErrorKind::kUsage, losses_path_, " must be a loss of training.objective for a translation, but is ",
       loss, "; fsdp-train keys lists them under training.objective");
}

/// The objective, and what it needs from several names together.
void Translator::complete_preferences() {
  section_.clear();
  const bool of_trl = form_.program == "Hugging Face's Trainer";
  const bool has_labels = has("preference.desirable_weight") || has("preference.undesirable_weight");
  if (of_trl && objective_.empty() && has_labels && losses_.empty()) losses_ = {"kto"};
  std::string objective = objective_;
  const bool asks_for_loss = objective_ == "dpo" || (of_trl && objective_.empty());
  const bool is_told = !losses_.empty() || has("preference.beta") || has("preference.cpo_alpha") ||
                       has("preference.simpo_gamma");
  if (asks_for_loss && (objective_ == "dpo" || is_told)) objective = objective_of_losses();
  const auto [smoothing_name, smoothing] = label_smoothing_;
  if (objective.empty()) {
    name_ = smoothing_name;
    if (smoothing) set("training.label_smoothing", *smoothing, smoothing_name);
    return;
  }
  name_ = "rl";
  set("training.objective", text_literal(objective),
      !losses_from_.empty()      ? losses_from_
      : !objective_from_.empty() ? objective_from_
                                 : "the trainer of the other names");
  of_chats_ = true;
  if (losses_ == std::vector<std::string>{"sigmoid_norm"})
    set("preference.length_normalised", toml_literal("true"), losses_from_);
  name_ = smoothing_name;
  if (smoothing) {
    set("preference.label_smoothing", *smoothing, smoothing_name);
    if (objective == "dpo" && of_trl) {
      notes_.push_back(
          "preference.label_smoothing has an effect with dpo here; TRL 1.16 ignores it for this loss");
    }
  } else if (objective == "exo_pair") {
    set("preference.label_smoothing", toml_literal("0.001"), "TRL's smallest");
  }
  if (of_trl && !has("optimizer.lr")) set("optimizer.lr", toml_literal("1e-6"), "default of TRL");
  if (objective == "orpo" && form_.program == "LLaMA-Factory") {
    notes_.push_back("the cross entropy of orpo has prompts too, as in TRL, unlike that of LLaMA-Factory");
  }
  if (objective == "kto" && form_.program == "LLaMA-Factory") {
    notes_.push_back(
        "kto exchanges answers with the row before, LLaMA-Factory with a row of its batch of rows to tokenize");
  }
  name_ = "cpo_alpha";
  const bool adds_entropy = form_.program != "LLaMA-Factory" && objective == "simpo";
  const auto alpha = kept_.find("preference.cpo_alpha");
  if (adds_entropy && (alpha == kept_.end() || std::get<double>(alpha->second.value) != 0)) {
    leave(
        "the other program adds the cross entropy of chosen answers with this weight, 1 unless it is given; "
        "training.objective = \"simpo\" has none");
  }
  if (objective == "simpo") kept_.erase("preference.cpo_alpha");
  const auto reference = kept_.find("preference.reference");
  if (reference != kept_.end() && reference->second.value == Value(std::string("stored"))) {
    notes_.push_back("fsdp-train reference-log-probs CONFIG computes the references, before the run");
  }
}

/// Rows of preferences: both documents share one.
void Translator::complete_preference_rows() {
  if (!learns_preferences()) return;
  section_ = name_ = "";
  for (const char* key : {"data.documents", "data.train_on", "data.max_tokens"}) {
    if (kept_.erase(key) > 0) off_.push_back(concat(key, " (answers are read document by document)"));
  }
  if (const auto length = kept_.find("data.sequence_length"); length != kept_.end()) {
    length->second.value = 2 * std::get<int64_t>(length->second.value);
    length->second.from += ", of each of the two documents in a row";
  }
  const bool of_labels = kept_.at("training.objective").value == Value(std::string("kto"));
  const auto rows = kept_.find("data.micro_batch_size");
  if (of_labels && rows != kept_.end() && form_.program != "LLaMA-Factory") {
    set("preference.exchanged_rows", toml_literal(concat(std::get<int64_t>(rows->second.value))),
        "TRL exchanges answers within a batch");
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
  const std::string data = learns_preferences() ? "data/preferences"
                           : of_chats_          ? "data/chats"
                                                : "data/texts";
  set("data.train", list_literal({data + ".train.u32"}), "written by fsdp-data tokenize, above");
  if (validates_ || has("evaluation.interval_steps")) {
    if (evaluates_)
      set("data.validation", list_literal({data + ".validation.u32"}),
          "written by fsdp-data tokenize, above");
  }
  if (has("model.init_from") && !has("data.tokenizer")) {
    set("data.tokenizer", text_literal(concat(model_.empty() ? "MODEL" : model_, "/tokenizer.json")),
        "beside the model");
  }
  if (learns_preferences()) return;
  if (of_chats_ && !counts_inputs_)
    set("data.train_on", text_literal("assistant"),
        "only answers count in the loss, as in the other program");
  if (of_chats_ && !has("data.documents"))
    set("data.documents", text_literal("split"), "one conversation per row, as in the other program");
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
  const std::string data = learns_preferences() ? "data/preferences"
                           : of_chats_          ? "data/chats"
                                                : "data/texts";
  std::string text = concat("Translated from ", file.filename().string(), ", ", "a config of ", form_.program,
                            ", by fsdp-train init --from-config.\n\nBefore the run:\n");
  if (!hub_model_.empty())
    text += concat("  hf download ", util::shell_word(hub_model_), " --local-dir ", util::shell_word(model_),
                   "\n");
  const char* const texts = learns_preferences() ? "preferences.jsonl --preference"
                            : of_chats_          ? "chats.jsonl --chat"
                                                 : "texts/*.txt";
  text += concat("  fsdp-data tokenize ", texts, " --tokenizer ", util::shell_word(tokenizer), " --output ",
                 data, ".train.u32");
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
  if (!off_.empty())
    text += concat("\nOff in the other program, or not needed here: ", util::join(off_, ", "), ".\n");
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
  if (!is_there && learns_preferences()) overrides[0] = "model.hidden_size=256";  // a reference has weights
  try {
    parse_config(sections(), file.string(), overrides);
  } catch (const util::Error& error) {
    if (error.kind() != ErrorKind::kUsage) return;
    left_out_.emplace_back("the config as a whole", concat("correct it: ", error.what()));
  }
}

Translation Translator::finish(const fs::path& file) {
  complete_preferences();
  complete_schedule();
  complete_adapters();
  complete_model();
  complete_data();
  add_defaults();
  complete_preference_rows();
  complete_adapters();
  drop_without_effect();
  Translation result;
  result.form = concat("a config of ", form_.program);
  check_whole(file);
  for (const auto& [name, reason] : left_out_) result.left_out.push_back(name);
  result.names = names_;
  result.toml = head(file) + sections();
  return result;
}

}  // namespace fsdp::config
