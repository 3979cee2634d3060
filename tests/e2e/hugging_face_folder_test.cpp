// A model's way from a folder of Hugging Face through a run and back, when that folder is gone.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/util/file.h"
#include "e2e/programs.h"
#include "support/source_folder.h"

namespace fsdp::e2e {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

class HuggingFaceFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directory(folder_ / "vocabulary");
    fs::copy_file(testing::source_folder() + "/tests/data/bpe/gpt2_kind.json",
                  folder_ / "vocabulary/tokenizer.json");
    testing::write_token_file(folder_ / "train.bin", 2000, 700);
    std::ofstream(folder_ / "scratch.toml") << kOddModel;
  }

  testing::ProgramResult run(const std::string& name, Words words) const {
    words.insert(words.begin(), program(name));
    return testing::run(words, {.env = {{"OMP_NUM_THREADS", "1"}}, .working_folder = folder_.path()});
  }
  void must_run(const std::string& name, const Words& words) const {
    const auto result = run(name, words);
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  Words on_data(Words words) const {
    const std::string train = "[\"" + (folder_ / "train.bin").string() + "\"]";
    for (const std::string& word :
         {"data.train=" + train, "data.validation=" + train, std::string("evaluation.max_samples=4"),
          std::string("data.sequence_length=16"), std::string("training.steps=2")}) {
      words.push_back(word);
    }
    return words;
  }
  json read(const std::string& name) const { return json::parse(util::read_file(folder_ / name)); }
  void write(const std::string& name, const json& value) const {
    std::ofstream(folder_ / name) << value.dump(2);
  }
  std::string path(const std::string& name) const { return folder_ / name; }

  testing::TemporaryFolder folder_;
};

TEST_F(HuggingFaceFolder, ComesBackFromARunAsItWasAndWithAllThatLayInIt) {
  must_run("fsdp-train", on_data({path("scratch.toml"), "model.vocab_size=704",
                                  "data.tokenizer=vocabulary/tokenizer.json", "run.output_dir=scratch"}));
  must_run("fsdp-ckpt", {"export", "scratch", "source", "--dtype", "bfloat16"});
  // What a run from scratch knows of its tokenizer.
  EXPECT_EQ(util::read_file(folder_ / "source/tokenizer.json"),
            util::read_file(folder_ / "vocabulary/tokenizer.json"));
  EXPECT_EQ(read("source/tokenizer_config.json")["eos_token"], "<|endoftext|>");
  EXPECT_EQ(read("source/config.json")["eos_token_id"], 0);
  must_run("fsdp-generate", {"source", "--prompt", "the", "--max-new-tokens", "3"});

  // Now as a Mistral of somebody else's.
  json config = read("source/config.json");
  config.update({{"model_type", "mistral"},
                 {"architectures", {"MistralForCausalLM"}},
                 {"sliding_window", nullptr},
                 {"bos_token_id", 1},
                 {"pad_token_id", 3},
                 {"transformers_version", "4.40.0"}});
  for (const char* key : {"attention_bias", "mlp_bias"}) config.erase(key);
  write("source/config.json", config);
  write("source/generation_config.json", {{"temperature", 0.5}, {"eos_token_id", 0}});
  write("source/special_tokens_map.json", {{"eos_token", "<|endoftext|>"}});
  std::map<std::string, std::string> small;
  for (const char* name :
       {"generation_config.json", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"}) {
    small[name] = util::read_file(folder_ / "source" / name);
  }

  must_run("fsdp-train", {"init", "finetune", "--from", "source", "--output", "mine.toml"});
  const auto trained =
      testing::run(on_data({program("fsdp-launch"), "--nproc-per-node", "2", "--", program("fsdp-train"),
                            "mine.toml", "run.output_dir=run", "lr_scheduler.warmup_steps=1"}),
                   {.env = {{"OMP_NUM_THREADS", "1"}}, .working_folder = folder_.path()});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  fs::remove_all(folder_ / "source");
  fs::remove_all(folder_ / "vocabulary");
  must_run("fsdp-generate", {"run", "--prompt", "the", "--max-new-tokens", "3"});

  const auto exported = run("fsdp-ckpt", {"export", "run", "exported"});
  ASSERT_EQ(exported.exit_code, 0) << exported.err;
  EXPECT_THAT(exported.out, HasSubstr("tokenizer_config.json"));
  for (const auto& [name, content] : small) {
    EXPECT_EQ(util::read_file(folder_ / "exported" / name), content) << name;
  }
  EXPECT_EQ(read("exported/config.json"), config);  // bfloat16 as well
  const std::string tensors = run("fsdp-ckpt", {"inspect", "exported"}).out;
  EXPECT_THAT(tensors, HasSubstr("bfloat16"));
  EXPECT_EQ(tensors.find("float32"), std::string::npos) << tensors;
  must_run("fsdp-generate", {"exported", "--prompt", "the", "--max-new-tokens", "3"});

  // A checkpoint that is made anew, and one that is imported, have it too.
  must_run("fsdp-ckpt", {"reshard", "run", "again", "--world-size", "3"});
  must_run("fsdp-ckpt", {"export", "again", "exported-again"});
  must_run("fsdp-ckpt", {"import", "exported", "imported"});
  must_run("fsdp-ckpt", {"export", "imported", "exported-from-import"});
  for (const std::string other : {"exported-again", "exported-from-import"}) {
    for (const auto& [name, content] : small) {
      EXPECT_EQ(util::read_file(folder_ / other / name), content) << name;
    }
    EXPECT_EQ(read(other + "/config.json"), config) << other;
  }

  // The loss of the folder is that of the run's last weights, up to the rounding to bfloat16.
  std::ofstream(folder_ / "bare.toml") << "[data]\ntrain = [\"train.bin\"]\n";
  const auto loss = [&](const std::string& weights) {
    const auto result = run("fsdp-train", on_data({"bare.toml", "--evaluate", weights}));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out.empty() ? 0 : std::stod(result.out.substr(std::string("loss ").size()));
  };
  EXPECT_NEAR(loss("exported"), loss("run"), 1e-2);
}

TEST_F(HuggingFaceFolder, OfAnotherKindOfModelIsNeitherTrainedNorEvaluated) {
  must_run("fsdp-train", on_data({path("scratch.toml"), "run.output_dir=scratch", "model.vocab_size=704"}));
  must_run("fsdp-ckpt", {"export", "scratch", "source"});
  json config = read("source/config.json");
  config["model_type"] = "qwen2_moe";
  write("source/config.json", config);
  const std::string toml = path("scratch.toml");
  for (const Words& words : {Words{toml, "model.vocab_size=704", "model.init_from=source"},
                             Words{toml, "model.vocab_size=704", "--evaluate", "source"}}) {
    const auto refused = run("fsdp-train", on_data(words));
    EXPECT_EQ(refused.exit_code, 4) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr("experts that all tokens share"));
  }
  config["model_type"] = "llama";
  config["rope_theta"] = 5e5;
  write("source/config.json", config);
  const auto refused = run(
      "fsdp-train", on_data({toml, "model.vocab_size=704", "model.rope_theta=1e4", "--evaluate", "source"}));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err,
              HasSubstr("model.rope_theta must be 5e+5, as in source/config.json, which describes"));
}

}  // namespace
}  // namespace fsdp::e2e
