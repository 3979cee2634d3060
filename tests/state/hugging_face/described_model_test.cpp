#include "state/description/described_model.h"

#include <gmock/gmock.h>

#include <fstream>

#include "base/util/file.h"
#include "state/hugging_face/hugging_face_config.h"
#include "support/log_lines.h"
#include "support/temporary_folder.h"
#include "support/tiny_models.h"

namespace fsdp::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::ElementsAre;

std::vector<std::string> names_of(const ModelFiles& files) {
  std::vector<std::string> names;
  for (const auto& [name, path] : files) names.push_back(name);
  return names;
}

TEST(ModelFiles, AreThoseThatATransformersFolderHasBesideWeightsAndConfig) {
  testing::TemporaryFolder folder;
  for (const char* name : {"README.md", "chat_template.jinja", "config.json", "generation_config.json",
                           "merges.txt", "model.safetensors", "special_tokens_map.json", "tokenizer.json",
                           "tokenizer.model", "tokenizer_config.json", "training_args.bin", "vocab.json"}) {
    std::ofstream(folder / name) << name;
  }
  fs::create_directory(folder / "tokenizer.json.d");
  fs::create_symlink(folder / "vocab.json", folder / "added_tokens.json");  // as in the hub's cache
  const ModelFiles files = model_files_in(folder.path());
  EXPECT_THAT(names_of(files),
              ElementsAre("added_tokens.json", "chat_template.jinja", "generation_config.json", "merges.txt",
                          "special_tokens_map.json", "tokenizer.json", "tokenizer.model",
                          "tokenizer_config.json", "vocab.json"));
  copy_model_files(files, folder / "copies");
  EXPECT_EQ(util::read_file(folder / "copies/added_tokens.json"), "vocab.json");
  EXPECT_EQ(names_of(model_files_in(folder / "copies")), names_of(files));
  EXPECT_TRUE(model_files_in(folder / "none").empty());
}

TEST(ModelFiles, OfACheckpointLieInItOrInItsRun) {
  testing::TemporaryFolder folder;
  const fs::path run = folder / "run", step = run / "step-00000001";
  fs::create_directories(step);
  EXPECT_TRUE(kept_model_files(step).empty());
  fs::create_directory(run / kModelFilesName);
  fs::create_directory_symlink("step-00000001", run / "best");
  EXPECT_EQ(kept_model_files(step), run / kModelFilesName);
  EXPECT_EQ(kept_model_files(run / "best"), run / kModelFilesName);
  EXPECT_EQ(kept_model_files(step.string() + "/"), run / kModelFilesName);
  fs::create_directory(step / kModelFilesName);
  EXPECT_EQ(kept_model_files(step), step / kModelFilesName);
}

TEST(InheritedConfig, HasAllThatTheSourceSaysAndWhatTheRunChanged) {
  nn::ModelOptions options = testing::tiny_options();
  json source = hugging_face_config(options);
  source.update({{"model_type", "mistral"},
                 {"sliding_window", nullptr},
                 {"architectures", {"MistralModel"}},
                 {"bos_token_id", 1},
                 {"eos_token_id", {2, 7}},
                 {"torch_dtype", "bfloat16"},
                 {"_name_or_path", "/home/somebody/mistral"},
                 {"unheard_of", {{"a", 1}}}});
  for (const char* key : {"attention_bias", "mlp_bias"}) source.erase(key);
  options = options_from_hugging_face(source, "source");
  options.attention_dropout = 0.5;
  json expected = source;
  expected["architectures"] = {"MistralForCausalLM"};
  expected["attention_dropout"] = 0.5;
  expected.erase("_name_or_path");
  EXPECT_EQ(inherited_config(options, source), expected);
  EXPECT_EQ(dtype_of_config(expected), at::kBFloat16);
}

TEST(InheritedConfig, OfAnotherModelHasItsIdsAndTypeOnly) {
  nn::ModelOptions options = testing::tiny_options();
  json source = hugging_face_config(options);
  source.update({{"eos_token_id", 2}, {"dtype", "float16"}, {"unheard_of", 1}});
  source.erase("torch_dtype");
  options.num_hidden_layers += 1;
  json expected = hugging_face_config(options);
  expected.update({{"eos_token_id", 2}, {"torch_dtype", "float16"}});
  EXPECT_EQ(inherited_config(options, source), expected);
  EXPECT_EQ(inherited_config(options, nullptr), hugging_face_config(options));
}

/// A link among the copies of a checkpoint would have the file that it leads to copied out with the next
/// export.
TEST(ModelFiles, OfACheckpointLeaveOutLinks) {
  const testing::TemporaryFolder root;
  root.write("secret", "secret");
  const auto kept = root / kModelFilesName, hub = root / "hub";
  for (const auto& folder : {kept, hub}) {
    fs::create_directories(folder);
    std::ofstream(folder / "merges.txt") << "a b";
    fs::create_symlink(root / "secret", folder / "tokenizer.json");
  }
  std::string lines = testing::log_lines([&] { EXPECT_EQ(model_files_in(kept).size(), 1U); });
  EXPECT_NE(lines.find("tokenizer.json is left out, because it is a symbolic link"), std::string::npos)
      << lines;
  EXPECT_EQ(model_files_in(hub).size(), 2U) << "the hub's cache consists of links";
  fs::create_directories(root / "step");
  fs::create_directory_symlink(hub, root / "step" / kModelFilesName);
  EXPECT_EQ(kept_model_files(root / "step"), kept);
}

}  // namespace
}  // namespace fsdp::checkpoint
