#include "run/train/model_record.h"

#include <gmock/gmock.h>

#include <fstream>

#include "base/util/log.h"
#include "model/families/families.h"
#include "state/description/described_model.h"
#include "state/hugging_face/hugging_face_config.h"
#include "support/safetensors_files.h"
#include "support/source_folder.h"
#include "support/tiny_config.h"

namespace fsdp::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string kTokenizers = testing::source_folder() + "/tests/data/bpe/";

class ModelRecord : public ::testing::Test {
 protected:
  void SetUp() override {
    util::set_log_level(util::LogLevel::kOff);
    fs::create_directories(config_.run.output_dir);
  }
  void TearDown() override { util::set_log_level(util::LogLevel::kInfo); }

  /// A folder as transformers leaves it, of bfloat16 weights.
  void write_source() {
    fs::create_directories(source());
    testing::NamedTensors weights;
    for (const auto& [name, shape] : nn::weight_shapes(config_.model)) {
      weights.emplace_back(name, at::zeros(shape, at::kBFloat16));
    }
    testing::write_safetensors(source() / "model.safetensors", weights);
    json config = checkpoint::hugging_face_config(config_.model);
    config.erase("torch_dtype");
    config["pad_token_id"] = 3;
    config["eos_token_id"] = 5;
    write("config.json", config.dump());
    write("generation_config.json", "{\"eos_token_id\": 5}");
    write("special_tokens_map.json", "{}");
    write("tokenizer_config.json", "{\"tokenizer_class\": \"LlamaTokenizer\"}");
    fs::copy_file(kTokenizers + "llama3_kind.json", source() / "tokenizer.json");
    config_.model.init_from = source();
  }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(source() / name) << text;
  }
  fs::path source() const { return folder_ / "source"; }
  fs::path kept() const { return fs::path(config_.run.output_dir) / checkpoint::kModelFilesName; }
  std::vector<std::string> kept_names() const {
    std::vector<std::string> names;
    for (const auto& [name, path] : checkpoint::model_files_in(kept())) names.push_back(name);
    return names;
  }

  testing::TemporaryFolder folder_;
  config::Config config_ = testing::tiny_config(folder_);
};

TEST_F(ModelRecord, IsAllOfTheFolderThatTheRunBeginsWith) {
  write_source();
  const json model = remember_model(config_, {});
  EXPECT_EQ(model["pad_token_id"], 3);
  EXPECT_EQ(model["eos_token_id"], 5);
  EXPECT_EQ(model["torch_dtype"], "bfloat16") << "of the weights, as config.json does not say it";
  EXPECT_THAT(kept_names(), ::testing::ElementsAre("generation_config.json", "special_tokens_map.json",
                                                   "tokenizer.json", "tokenizer_config.json"));
  // A tokenizer that is named and is the same one changes nothing.
  fs::copy_file(kTokenizers + "llama3_kind.json", folder_ / "tokenizer.json");
  config_.data.tokenizer = folder_ / "tokenizer.json";
  remember_model(config_, {});
  EXPECT_EQ(util::read_file(kept() / "tokenizer_config.json"),
            util::read_file(source() / "tokenizer_config.json"));
}

TEST_F(ModelRecord, HasTheTokenizerOfTheData) {
  write_source();
  config_.data.tokenizer = kTokenizers + "gpt2_kind.json";
  remember_model(config_, {});
  EXPECT_EQ(util::read_file(kept() / "tokenizer.json"), util::read_file(kTokenizers + "gpt2_kind.json"));
  EXPECT_THAT(kept_names(),
              ::testing::ElementsAre("generation_config.json", "tokenizer.json", "tokenizer_config.json"));
  EXPECT_EQ(json::parse(util::read_file(kept() / "tokenizer_config.json"))["tokenizer_class"],
            "PreTrainedTokenizerFast");
}

TEST_F(ModelRecord, OfARunFromScratchHasItsTokenizerAndTheTokenThatEndsATextInIt) {
  EXPECT_FALSE(remember_model(config_, {}).contains("eos_token_id"));
  EXPECT_FALSE(fs::exists(kept())) << "bytes have no files";
  config_.data.tokenizer = kTokenizers + "gpt2_kind.json";
  const json model = remember_model(config_, {});
  const json tokenizer = json::parse(util::read_file(config_.data.tokenizer));
  const json end = tokenizer["added_tokens"][0];
  EXPECT_EQ(model["eos_token_id"], end["id"]);
  EXPECT_EQ(model["bos_token_id"], end["id"]);
  EXPECT_EQ(json::parse(util::read_file(kept() / "tokenizer_config.json"))["eos_token"], end["content"]);
}

TEST_F(ModelRecord, HasGpt2sVocabularyUnderTheNamesOfTransformers) {
  config_.data.tokenizer = kTokenizers + "gpt2_files";
  remember_model(config_, {});
  EXPECT_THAT(kept_names(), ::testing::ElementsAre("merges.txt", "tokenizer_config.json", "vocab.json"));
}

TEST_F(ModelRecord, OfARunThatGoesOnIsThatOfItsBeginning) {
  write_source();
  const json begun = remember_model(config_, {});
  const fs::path step = testing::save_checkpoint(config_.run.output_dir, {{"model/w", at::ones({2})}}, 1);
  testing::edit_manifest(step, [&](json& manifest) { manifest["model"] = begun; });
  fs::remove_all(source());
  config_.model.init_from.clear();
  EXPECT_EQ(remember_model(config_, {.resume = step}), begun);
  EXPECT_EQ(kept_names().size(), 4u);
  // And so in another folder.
  const std::vector<std::string> names = kept_names();
  config_.run.output_dir = folder_ / "other";
  fs::create_directories(config_.run.output_dir);
  EXPECT_EQ(remember_model(config_, {.resume = step}), begun);
  EXPECT_EQ(kept_names(), names);
  EXPECT_EQ(remember_model(config_, {.init = step}), begun);
  EXPECT_EQ(kept_names(), names);
}

}  // namespace
}  // namespace fsdp::train
