#pragma once

// Translator: the names of one foreign config become keys, in four steps: each name by a rule (rules.cpp), by
// its row in the table of foreign names, or as a key of ours; keys that only several names together give; the
// other program's defaults; and a check of the whole.

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/util/text.h"
#include "setup/config/value.h"
#include "setup/translate/foreign_value.h"
#include "setup/translate/translate.h"

namespace fsdp::config {

/// A program whose configs are translated.
struct Form {
  std::string_view program, syntax;
  std::vector<std::string> marks;  ///< names of which a file of this form has at least one
  /// Values of that program, for names that the file lacks, where ours are others.
  std::string_view defaults;
};

/// Collects keys of ours from the names of one file, one after another.
class Translator {
 public:
  explicit Translator(const Form& form) : form_(form) {}

  void read(const std::string& section, const std::string& name, const Literal& value);
  Translation finish(const std::filesystem::path& file);

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
  void read_stage(const Literal& value);
  [[noreturn]] void refuse_stage(const std::string& word) const;
  void read_losses(const Literal& value);
  void read_reference(const Literal& value);
  void read_targets(const Literal& value);
  void offload_activations(const Literal& value);
  void read_data(const Literal& value);
  void read_sharding(const Literal& value);
  void read_zero_plus_plus(const Literal::Field& key);
  void read_strategy(const Literal& value);
  void read_floor(const Literal& value);

  bool learns_preferences() const { return has("training.objective"); }
  std::string objective_of_losses() const;
  void complete_preferences();
  void complete_preference_rows();
  void complete_adapters();
  void complete_model();
  void complete_data();
  void complete_schedule();
  void add_defaults();
  void drop_without_effect();
  void check_whole(const std::filesystem::path& file);
  std::string sections() const;
  std::string head(const std::filesystem::path& file) const;

  const Form& form_;
  std::string section_, name_;  ///< of the name that is being read
  std::map<std::string, Kept> kept_;
  std::vector<std::pair<std::string, std::string>> left_out_;
  std::vector<std::string> off_, notes_;
  std::vector<double> betas_;
  std::string model_, hub_model_, flavor_, validation_share_ = "0.05";
  std::optional<double> floor_, decay_ratio_;
  std::string objective_, objective_from_;  ///< rl or stage, and its origin; empty: none
  std::vector<std::string> losses_;         ///< names of losses of preferences, as the other program has them
  std::string losses_from_, losses_path_;
  std::pair<std::string, std::optional<Literal>> label_smoothing_;  ///< its name and value
  bool has_adapter_ = false, has_rank_ = false, of_chats_ = false, validates_ = false, counts_inputs_ = false;
  bool evaluates_ = true;
  size_t names_ = 0;
};

}  // namespace fsdp::config
