#include "setup/config/foreign_names.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "setup/config/config_text.h"
#include "setup/config/keys.h"
#include "support/source_folder.h"

namespace fsdp::config {
namespace {

std::vector<std::string> words_of(std::string_view text) {
  std::istringstream stream{std::string(text)};
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

bool is_section(const std::string& name) { return name.starts_with('['); }

std::string replaced(std::string text, const std::string& part, const std::string& by) {
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part)) {
    text.replace(at, part.size(), by);
  }
  return text;
}

/// Parts of the text that the pattern matches.
std::vector<std::string> matches_in(const std::string& text, const std::regex& pattern) {
  std::vector<std::string> found;
  for (std::sregex_iterator match(text.begin(), text.end(), pattern), none; match != none; ++match) {
    found.push_back((*match)[1]);
  }
  return found;
}

bool is_known_section(const std::string& name) {
  const std::vector<std::string> sections = section_names();
  return std::find(sections.begin(), sections.end(), name) != sections.end();
}

TEST(ForeignNames, AreAnsweredByTheirKeyFirst) {
  int answered = 0;
  for (const ForeignName& row : foreign_names()) {
    for (const std::string& name : words_of(row.names)) {
      if (is_section(name)) continue;
      const std::string path = replaced(name.find('.') == std::string::npos ? "run." + name : name, "*", "x");
      const size_t dot = path.find('.');
      const std::string text = "[" + path.substr(0, dot) + "]\n" + path.substr(dot + 1) + " = 1\n";
      const std::string first = row.ours.empty() ? std::string(row.remark) : concat("write ", row.ours);
      expect_in(error_of(kTrain + text), concat("c.toml:4: unknown key ", path, "; ", first));
      ++answered;
    }
  }
  EXPECT_GT(answered, 400);
}

TEST(ForeignNames, NameOnlyKeysAndSectionsThatExist) {
  const std::regex key("\\b([a-z_]+\\.[a-z0-9_]+)\\b"), section("\\[([a-z_]+)\\]");
  for (const ForeignName& row : foreign_names()) {
    EXPECT_FALSE(row.ours.empty() && row.remark.empty()) << row.names;
    const std::string text = concat(row.ours, " ", row.remark);
    for (const std::string& name : matches_in(text, key)) {
      const size_t dot = name.find('.');
      const bool is_key = find_key(name.substr(0, dot), name.substr(dot + 1)) != nullptr;
      EXPECT_TRUE(is_key || name == "metrics.jsonl") << name << " for " << row.names;
    }
    for (const std::string& name : matches_in(text, section)) EXPECT_TRUE(is_known_section(name)) << name;
  }
}

TEST(ForeignNames, GiveValuesThatTheirKeysAccept) {
  for (const ForeignName& row : foreign_names()) {
    const size_t equals = row.ours.find(" = ");
    if (equals == std::string_view::npos) continue;
    const std::string setting = replaced(std::string(row.ours), " = ", "=");
    std::string error;
    try {
      parse_config(kTrain, "c.toml", {setting});
    } catch (const util::Error& refusal) {
      error = refusal.what();
    }
    EXPECT_EQ(error.find(concat(row.ours.substr(0, equals), " must be one of")), std::string::npos) << error;
    EXPECT_EQ(error.find("unknown key"), std::string::npos) << error;
  }
}

TEST(ForeignNames, AppearOnceAndHideNoKey) {
  std::set<std::string> seen;
  for (const ForeignName& row : foreign_names()) {
    for (const std::string& name : words_of(row.names)) {
      EXPECT_TRUE(seen.insert(replaced(replaced(name, "_", ""), "-", "")).second) << name;
      const size_t dot = name.find('.');
      if (dot == std::string::npos) continue;
      EXPECT_EQ(find_key(name.substr(0, dot), name.substr(dot + 1)), nullptr) << name;
    }
  }
}

TEST(ForeignNames, AreAnsweredInOneSentence) {
  for (const ForeignName& row : foreign_names()) {
    EXPECT_EQ(row.remark.find(". "), std::string_view::npos) << row.remark;
    EXPECT_FALSE(row.remark.ends_with('.')) << row.remark;
  }
}

TEST(ForeignNames, AreKnownInAnySpellingAndSection) {
  EXPECT_EQ(error_of(kTrain + "[training]\nseq_len = 2048\n"),
            "c.toml:4: unknown key training.seq_len; write data.sequence_length instead\n"
            "    4 | seq_len = 2048\n"
            "      | ~~~~~~~");
  expect_in(error_of(kTrain + "[optimizer]\nlearning_rate = 1e-4\n"), "; write optimizer.lr instead");
  expect_in(error_of(kTrain + "[training]\nmax-steps = 9\n"),
            "training.max-steps; write training.steps instead");
  expect_in(error_of(kTrain + "[training]\nperDeviceTrainBatchSize = 9\n"),
            "; write data.micro_batch_size instead");
  expect_in(error_of(kTrain + "[training]\nbf16 = true\n"),
            "; write mixed_precision.param_dtype = \"bfloat16\" if bf16 is to be true");
  expect_in(error_of(kTrain + "[training]\nlocal_batch_size = 8\n"), "; write data.micro_batch_size instead");
  expect_in(error_of(kTrain + "[lora]\nr = 8\n"), "unknown key lora.r; write lora.rank instead");
  expect_in(error_of(kTrain, {"trainer.args.max_steps=9"}), "; write training.steps instead");
}

TEST(ForeignNames, AreKnownAboveAllSections) {
  expect_in(error_of("learning_rate = 1e-4\n" + kTrain),
            "c.toml:1: every key must be in a section, but learning_rate is outside all sections; write "
            "optimizer.lr instead");
  expect_in(error_of("optimizer = \"adamw\"\n" + kTrain), "; write optimizer.name instead");
  expect_in(error_of("[[datasets]]\npath = \"a\"\n" + kTrain), "; write data.train, token files that");
  expect_in(error_of(kTrain, {"learning_rate=1e-4"}), "without a section; write optimizer.lr instead");
  expect_in(error_of(kTrain, {"wandb_project=x"}), "; runs are not sent to a tracking service");
}

TEST(ForeignNames, OfForeignSectionsAreAnsweredKeyByKey) {
  const std::string message = error_of(
      "[job]\ndump_folder = \"out\"\n[parallelism]\ntensor_parallel_degree = 2\nmodule_fqns = 3\n"
      "[activation_checkpoint]\nmode = \"full\"\n" +
      kTrain);
  expect_in(message, "the config has 4 errors:\n");
  expect_in(message, "c.toml:2: unknown key job.dump_folder; write run.output_dir instead");
  expect_in(message, "c.toml:4: unknown key parallelism.tensor_parallel_degree; write mesh.model instead");
  expect_in(message, "c.toml:5: unknown key parallelism.module_fqns; the sections are ");
  expect_in(message,
            "c.toml:7: unknown key activation_checkpoint.mode; write activation_checkpointing.mode instead");
}

TEST(ForeignNames, OfSectionsNameOurSections) {
  expect_in(error_of(kTrain + "[parallelism]\nmodule_fqns = 3\n"),
            "c.toml:3: unknown section [parallelism]; its keys are in [mesh], [fsdp] and [comm]");
  expect_in(error_of(kTrain + "[metrics]\n"), "unknown section [metrics]; its keys are in [logging]");
}

TEST(ForeignNames, OfFlagsAreAnsweredWithTheirValue) {
  EXPECT_EQ(foreign_flag_answer("per_device_train_batch_size", "4"), "write data.micro_batch_size=4");
  EXPECT_EQ(foreign_flag_answer("learning_rate", ""), "write optimizer.lr=VALUE");
  EXPECT_EQ(foreign_flag_answer("ddp_backend", "fully_sharded"),
            "write fsdp.strategy=full_shard, or comm.backend for a library such as nccl");
  EXPECT_EQ(foreign_flag_answer("fsdp", "full_shard auto_wrap"), "write fsdp.strategy=full_shard");
  EXPECT_EQ(foreign_flag_answer("mixed_precision", "bf16"), "write mixed_precision.param_dtype=bfloat16");
  EXPECT_EQ(foreign_flag_answer("lora_target_linear", "true"), "write 'lora.targets=[\"*\"]'");
  EXPECT_EQ(foreign_flag_answer("dataset", "wikitext"),
            "write data.train=VALUE, token files that fsdp-data tokenize writes");
  EXPECT_EQ(foreign_flag_answer("banana", "4"), "");
}

TEST(ForeignValues, AreAnsweredByOurs) {
  expect_in(error_of(kTrain, {"training.device=gpu"}), "but is \"gpu\"; did you mean \"cuda\"?");
  expect_in(error_of(kTrain, {"training.device=cuda:0"}), "; did you mean \"cuda\"?");
  expect_in(error_of(kTrain, {"optimizer.name=AdamW"}), "; did you mean \"adamw\"?");
  expect_in(error_of(kTrain, {"optimizer.name=adamw_torch_fused"}), "; did you mean \"adamw\"?");
  expect_in(error_of(kTrain, {"mixed_precision.param_dtype=bf16"}), "; did you mean \"bfloat16\"?");
  expect_in(error_of(kTrain, {"mixed_precision.reduce_dtype=fp32"}), "; did you mean \"float32\"?");
  expect_in(error_of(kTrain, {"fsdp.strategy=fully_sharded"}), "; did you mean \"full_shard\"?");
  expect_in(error_of(kTrain, {"fsdp.strategy=FULL_SHARD"}), "; did you mean \"full_shard\"?");
  expect_in(error_of(kTrain, {"lr_scheduler.name=constant_with_warmup"}), "; did you mean \"constant\"?");
  expect_in(error_of(kTrain + "[activation_checkpointing]\nmode = true\n"), "; did you mean \"full\"?");
  expect_in(error_of(kTrain + "[checkpoint]\nasynchronous = \"async\"\n"), "; did you mean true?");
  expect_in(error_of(kTrain + "[fsdp]\ncpu_offload = 1\n"), "; did you mean true?");
}

TEST(ForeignValues, HaveAnAnswerThatTheirKeysAccept) {
  Config defaults;
  for (const ForeignValue& row : foreign_values()) {
    int accepting = 0;
    for (const Key& key : all_keys()) {
      if (!row.key.empty() && row.key != key.full_name()) continue;
      const std::vector<std::string>& choices = key.constraint.choices;
      const bool is_bool = std::holds_alternative<bool>(value_of(key, defaults));
      accepting += is_bool ? row.ours == "true" || row.ours == "false"
                           : std::find(choices.begin(), choices.end(), row.ours) != choices.end();
      for (const std::string& name : words_of(row.names)) {
        EXPECT_FALSE(std::find(choices.begin(), choices.end(), name) != choices.end() && !row.key.empty())
            << name << " is a value of " << key.full_name();
      }
    }
    EXPECT_GT(accepting, 0) << row.key << " = " << row.ours;
  }
}

/// A row of a table in docs/migrating.md: names of another program, and the answer.
struct PageRow {
  std::vector<std::string> names;
  std::string first;  ///< the key in the answer; empty: there is none, or it has the same name
};

std::vector<PageRow> rows_of_the_page() {
  std::ifstream page(testing::source_folder() + "/docs/migrating.md");
  const std::regex code("`(?:--)?([^`=]+)[^`]*`"), ours("^`([^`]+)`.*"), cells("\\| (`.*) \\| (.*) \\|");
  std::vector<PageRow> rows;
  std::smatch row, key;
  for (std::string line; std::getline(page, line);) {
    if (!std::regex_match(line, row, cells)) continue;
    const std::string answer = row[2];
    rows.push_back({matches_in(row[1], code), std::regex_match(answer, key, ours) ? key.str(1) : ""});
  }
  return rows;
}

/// Whether a key has this name, with or without its section.
bool is_key(const std::string& name) {
  return std::any_of(all_keys().begin(), all_keys().end(), [&](const Key& key) {
    return key.full_name() == name || key.name == replaced(name, "-", "_");
  });
}

TEST(ForeignNames, OfThePageOnMigratingAreAnsweredAsItSays) {
  int compared = 0;
  for (const PageRow& row : rows_of_the_page()) {
    for (const std::string& name : row.names) {
      const size_t dot = name.find('.');
      const std::string section = dot == std::string::npos ? "" : name.substr(0, dot);
      const std::string answer = foreign_name_answer(section, name.substr(dot + 1));
      EXPECT_TRUE(is_key(name) || !answer.empty()) << name;
      if (answer.empty() || row.first.empty()) continue;
      EXPECT_TRUE(answer.starts_with("write " + row.first)) << name << ": " << answer;
      ++compared;
    }
  }
  EXPECT_GT(compared, 150);
}

TEST(ForeignNames, OfThePageOnMigratingAreTranslatedIntoValidConfigs) {
  std::ifstream page(testing::source_folder() + "/docs/migrating.md");
  std::string config;
  int configs = 0;
  for (std::string line; std::getline(page, line);) {
    if (line == "END") {
      EXPECT_NO_THROW(parse_config(config, "c.toml")) << config;
      ++configs;
    }
    config = line.starts_with("cat > ") ? "" : config + line + "\n";
  }
  EXPECT_EQ(configs, 4);
}

}  // namespace
}  // namespace fsdp::config
