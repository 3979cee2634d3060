#include "setup/translate/translate.h"

#include <algorithm>
#include <utility>

#include "base/util/error.h"
#include "base/util/json.h"
#include "setup/config/load.h"
#include "setup/translate/translator.h"
#include "setup/translate/yaml.h"

namespace fsdp::config {
namespace fs = std::filesystem;

namespace {

using Kind = Literal::Kind;

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
