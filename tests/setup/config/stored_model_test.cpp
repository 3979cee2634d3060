// [model] of a config whose model.init_from names weights with a config.json beside them.

#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "setup/config/config_text.h"
#include "setup/config/model_description.h"
#include "setup/config/presets.h"
#include "setup/config/print.h"

namespace fsdp::config {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const json kQwen2 = {{"model_type", "qwen2"},
                     {"architectures", {"Qwen2ForCausalLM"}},
                     {"vocab_size", 151936},
                     {"hidden_size", 64},
                     {"intermediate_size", 96},
                     {"num_hidden_layers", 3},
                     {"num_attention_heads", 4},
                     {"num_key_value_heads", 2},
                     {"max_position_embeddings", 512},
                     {"rms_norm_eps", 1e-6},
                     {"rope_theta", 1e6},
                     {"tie_word_embeddings", true},
                     {"attention_dropout", 0.25},
                     {"torch_dtype", "bfloat16"}};

class StoredModel : public ::testing::Test {
 protected:
  void SetUp() override { write(kQwen2); }
  /// A folder as Hugging Face lays it out; nobody reads the weights here.
  void write(const json& config) {
    std::ofstream(folder_ / "config.json") << config.dump();
    std::ofstream(folder_ / "model.safetensors") << "";
  }
  /// With model.init_from.
  std::string with(const std::string& more = "") const {
    return kTrain + "[model]\ninit_from = \"" + folder_.path().string() + "\"\n" + more;
  }
  Config loaded(const std::string& more = "", const std::vector<std::string>& overrides = {}) const {
    return parse_config(with(more), "c.toml", overrides);
  }
  std::string refused(const json& config) {
    write(config);
    try {
      loaded();
    } catch (const util::Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCheckpoint);
      return error.what();
    }
    ADD_FAILURE() << "loaded";
    return "";
  }
  testing::TemporaryFolder folder_;
};

TEST_F(StoredModel, IsThatOfARunWhoseConfigGivesNone) {
  const nn::ModelOptions model = loaded().model;
  EXPECT_EQ(model.vocab_size, 151936);
  EXPECT_EQ(model.hidden_size, 64);
  EXPECT_EQ(model.num_key_value_heads, 2);
  EXPECT_TRUE(model.qkv_bias);
  EXPECT_TRUE(model.tie_word_embeddings);
  EXPECT_EQ(model.rope_theta, 1e6);
  EXPECT_EQ(model.rms_norm_eps, 1e-6);
  EXPECT_EQ(model.attention_dropout, 0.25);
  EXPECT_EQ(model.init_from, folder_.path());
}

TEST_F(StoredModel, FillsInWhatAConfigLeavesOutSoThatItIsTheModelOfTheWeights) {
  const Config config = loaded("num_hidden_layers = 3\nhidden_size = 64\nnum_attention_heads = 4\n");
  EXPECT_EQ(differing_keys(config, loaded()), std::vector<std::string>{});
}

TEST_F(StoredModel, RefusesEveryKeyThatContradictsItWithBothValues) {
  const std::string message =
      error_of(with("qkv_bias = false\nrope_theta = 10000.0\n"), {"model.num_hidden_layers=4"});
  EXPECT_THAT(message,
              AllOf(HasSubstr("c.toml:5: model.qkv_bias must be true, as in "),
                    HasSubstr("config.json, which describes the weights in model.init_from, but is false"),
                    HasSubstr("model.rope_theta must be 1e+6"), HasSubstr("but is 10000.0"),
                    HasSubstr("model.num_hidden_layers must be 3"), HasSubstr("but is 4")));
  EXPECT_THAT(error_of(with("preset = \"qwen2.5-0.5b\"\n")),
              AllOf(HasSubstr("preset qwen2.5-0.5b"), HasSubstr("model.hidden_size must be 64")));
  // Another architecture has other keys, which are not worth a line each.
  EXPECT_THAT(error_of(with("architecture = \"gpt2\"\n")),
              AllOf(HasSubstr("model.architecture must be \"llama\""), Not(HasSubstr("rope_theta"))));
}

TEST_F(StoredModel, MayGetMoreTokensButNotFewer) {
  EXPECT_EQ(loaded("vocab_size = 151940\n").model.vocab_size, 151940);
  EXPECT_EQ(loaded("", {"model.vocab_size=151940"}).model.hidden_size, 64);
  EXPECT_THAT(error_of(with("vocab_size = 151930\n")),
              AllOf(HasSubstr("model.vocab_size must be 151936, as in "), HasSubstr("but is 151930")));
}

TEST_F(StoredModel, LeavesFreeWhatIsNoPartOfTheWeights) {
  const Config config =
      loaded("attention_dropout = 0.0\nhidden_dropout = 0.1\ninitializer_range = 0.5\nhead_dim = 16\n");
  EXPECT_EQ(config.model.attention_dropout, 0);
  EXPECT_EQ(config.model.hidden_dropout, 0.1);
  EXPECT_EQ(config.model.initializer_range, 0.5);
  EXPECT_EQ(config.model.head_dim, 16) << "64 / 4, said in another way";
}

TEST_F(StoredModel, OfAnotherKindThanIsSupportedIsRefusedByName) {
  json config = kQwen2;
  config["model_type"] = "granitemoe";
  EXPECT_THAT(refused(config),
              AllOf(HasSubstr("\"granitemoe\""), HasSubstr("which this version cannot compute")));
  config["model_type"] = "llama";
  config["embedding_multiplier"] = 12.0;
  EXPECT_THAT(refused(config), HasSubstr("\"embedding_multiplier\": 12.0 (scaled embeddings)"));
}

TEST_F(StoredModel, IsToldApartFromWhatIsGivenByItsOrigin) {
  std::ofstream(folder_ / "c.toml") << with("num_hidden_layers = 3\n");
  const TracedConfig traced = trace_config(folder_ / "c.toml");
  EXPECT_EQ(traced.origins.at("model.hidden_size"), (folder_ / "config.json").string());
  EXPECT_EQ(traced.origins.at("model.num_key_value_heads"), (folder_ / "config.json").string());
  EXPECT_EQ(traced.origins.at("model.num_hidden_layers"), (folder_ / "c.toml").string() + ":5");
  EXPECT_EQ(traced.origins.at("model.init_unused"), "default");
}

TEST_F(StoredModel, IsNotNeededByTheResolvedConfigOfARun) {
  std::ofstream(folder_ / "config.toml") << to_toml(loaded());
  json config = kQwen2;
  config["hidden_size"] = 128;
  write(config);
  EXPECT_EQ(load_resolved_config(folder_ / "config.toml").model.hidden_size, 64);
  for (const char* name : {"config.json", "model.safetensors"}) std::filesystem::remove(folder_ / name);
  EXPECT_EQ(load_resolved_config(folder_ / "config.toml").model.hidden_size, 64);
}

TEST_F(StoredModel, ThatIsNotThereMustBeGiven) {
  const std::string there = kTrain + "[model]\ninit_from = \"meta-llama/Llama-3.2-1B\"\n";
  EXPECT_THAT(error_of(there),
              AllOf(HasSubstr("c.toml:4: model.init_from: there are no weights at meta-llama/Llama-3.2-1B"),
                    HasSubstr("hf download meta-llama/Llama-3.2-1B --local-dir models/Llama-3.2-1B")));
  EXPECT_EQ(parse_config(there + "preset = \"llama3.2-1b\"\n", "c.toml").model.num_hidden_layers, 16);
}

TEST_F(StoredModel, ThatIsPickledIsRefusedWithTheRemedy) {
  std::filesystem::rename(folder_ / "model.safetensors", folder_ / "pytorch_model.bin");
  try {
    loaded();
    ADD_FAILURE() << "loaded";
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCheckpoint);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("but has pytorch_model.bin"), HasSubstr("safe_serialization=True")));
  }
}

TEST_F(StoredModel, MakesAWholeConfigForFineTuningIt) {
  std::ofstream(folder_ / "tokenizer.json") << "{}";
  const std::string text = tuning_toml(kFinetune, folder_.path());
  const Config config = parse_config(text, "mine.toml");
  EXPECT_TRUE(compare_models(config.model, loaded().model).empty());
  // All of the model is in the text, too: its folder may be elsewhere where the run is planned.
  const std::string init = "init_from = \"" + folder_.path().string() + "\"";
  std::string elsewhere = text;
  elsewhere.replace(elsewhere.find(init), init.size(), "init_from = \"elsewhere\"");
  EXPECT_TRUE(compare_models(parse_config(elsewhere, "mine.toml").model, loaded().model).empty());
  EXPECT_EQ(config.model.init_from, folder_.path());
  EXPECT_EQ(config.data.tokenizer, folder_ / "tokenizer.json");
  EXPECT_EQ(config.data.train, std::vector<std::string>{"data/notes.train.u32"}) << "151936 tokens";
  EXPECT_EQ(config.data.sequence_length, 512);
  const int64_t feed_forward = 3 * 64 * 96, block = feed_forward + 2 * 64 * (64 + 32);
  EXPECT_GT(config.fsdp.min_num_params, feed_forward);
  EXPECT_LE(config.fsdp.min_num_params, block);
}

TEST_F(StoredModel, MakesAWholeConfigForTuningItOnChats) {
  std::ofstream(folder_ / "tokenizer.json") << "{}";
  const Config config = parse_config(tuning_toml(kChats, folder_.path()), "mine.toml");
  EXPECT_TRUE(compare_models(config.model, loaded().model).empty());
  EXPECT_EQ(config.data.tokenizer, folder_ / "tokenizer.json");
  EXPECT_EQ(config.data.train, std::vector<std::string>{"data/chats.train.u32"});
  EXPECT_GT(config.lora.rank, 0);
  EXPECT_EQ(config.data.documents, data::DocumentTreatment::kSplit);
  EXPECT_EQ(config.data.train_on, data::TrainOn::kAssistant);
}

}  // namespace
}  // namespace fsdp::config
