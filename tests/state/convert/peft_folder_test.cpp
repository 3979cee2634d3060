// Folders of PEFT: what is written of a checkpoint of adapters, and what is read and refused.

#include "state/convert/peft_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/util/file.h"
#include "state/convert/sharded_writer.h"
#include "support/safetensors_files.h"

namespace fsdp::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::NamedTensors;

const std::string kLayer = "model.layers.0.self_attn.q_proj";

/// Of one layer [out 6, in 4], with the prefix of PEFT or none.
NamedTensors adapter_tensors(const std::string& prefix, bool dora = false) {
  NamedTensors tensors = {
      {prefix + kLayer + ".lora_A.weight", at::arange(8, at::kFloat).view({2, 4}).sin()},
      {prefix + kLayer + ".lora_B.weight", at::arange(12, at::kFloat).view({6, 2}).cos()}};
  if (dora) tensors.emplace_back(prefix + kLayer + ".lora_magnitude_vector", at::ones({6}));
  return tensors;
}

/// What a checkpoint's manifest says of them.
json described(bool dora = false) {
  AdapterDescription adapter;
  adapter.lora.rank = 2;
  adapter.lora.alpha = 8;
  adapter.lora.dora = dora;
  adapter.layers = {kLayer};
  adapter.base = "base";
  return {{kAdapterKey, adapter_json(adapter)}};
}

json peft_config() {
  return {{"peft_type", "LORA"},          {"r", 2},         {"lora_alpha", 8},   {"lora_dropout", 0.1},
          {"target_modules", {"q_proj"}}, {"bias", "none"}, {"use_rslora", true}};
}

class PeftFolder : public ::testing::Test {
 protected:
  void SetUp() override { write(peft_config()); }
  void write(const json& config) {
    folder_.write("adapter_config.json", config.dump());
    testing::write_safetensors(folder_ / "adapter_model.safetensors", adapter_tensors("base_model.model."));
  }
  StoredAdapter open() const { return open_adapter(folder_.path()); }
  std::string refusal() const {
    const auto [kind, text] = error_of([&] { open(); });
    EXPECT_EQ(kind, ErrorKind::kCheckpoint) << text;
    return text;
  }
  std::string refusal_of(const std::string& key, const json& value) {
    json config = peft_config();
    config[key] = value;
    write(config);
    return refusal();
  }
  /// A checkpoint with these adapters.
  fs::path checkpoint(const json& model, const NamedTensors& tensors) const {
    testing::write_safetensors(folder_ / "source.safetensors", tensors);
    Weights source;
    source.add(std::make_shared<SafetensorsReader>(folder_ / "source.safetensors"));
    std::vector<ShardedTensor> stored;
    for (const auto& [name, tensor] : tensors) {
      TensorInfo info = source.info(name);
      info.name = kWeightsPrefix + name;
      stored.push_back({name, info});
    }
    fs::remove_all(folder_ / "step-00000001");
    write_sharded({.folder = folder_ / "step-00000001",
                   .world_size = 2,
                   .contents = Contents::kWeights,
                   .training = nullptr,
                   .model = model,
                   .progress = {}},
                  source, stored);
    return folder_ / "step-00000001";
  }
  testing::TemporaryFolder folder_;
};

TEST_F(PeftFolder, IsReadAsPeftSavesIt) {
  json config = peft_config();
  config.update({{"modules_to_save", nullptr}, {"rank_pattern", json::object()}, {"unknown", nullptr}});
  write(config);
  const StoredAdapter adapter = open();
  EXPECT_EQ(adapter.description.lora.rank, 2);
  EXPECT_EQ(adapter.description.lora.alpha, 8);
  EXPECT_EQ(adapter.description.lora.dropout, 0.1);
  EXPECT_TRUE(adapter.description.lora.use_rslora);
  EXPECT_FALSE(adapter.description.lora.dora);
  EXPECT_EQ(adapter.description.base_identity, "");
  EXPECT_EQ(adapter.names.at(kLayer + ".lora_A.weight"), "base_model.model." + kLayer + ".lora_A.weight");
  EXPECT_EQ(adapter.where, (folder_ / "adapter_config.json").string());
}

TEST_F(PeftFolder, OfACheckpointHasItsTensorsUnderPeftsNames) {
  for (const bool dora : {false, true}) {
    NamedTensors tensors = adapter_tensors("", dora);
    if (dora) tensors.back().first += ".weight";
    const fs::path step = checkpoint(described(dora), tensors);
    const ConsolidateResult result =
        export_adapter({.checkpoint_folder = step, .output = folder_ / "peft", .overwrite = true});
    EXPECT_EQ(result.tensors, dora ? 3 : 2);
    EXPECT_EQ(*result.config, folder_ / "peft/adapter_config.json");
    const json config = json::parse(util::read_file(*result.config));
    EXPECT_EQ(config["r"], 2);
    EXPECT_EQ(config["lora_alpha"].dump(), "8") << "PEFT wants a whole number";
    EXPECT_EQ(config["use_dora"], dora);
    EXPECT_EQ(config["base_model_name_or_path"], "base");
    EXPECT_EQ(config["target_modules"], json({kLayer}));
    const StoredAdapter back = open_adapter(folder_ / "peft");
    for (const auto& [name, tensor] : adapter_tensors("base_model.model.", dora)) {
      at::Tensor read = at::empty_like(tensor);
      back.weights.read_into(name, read);
      EXPECT_TRUE(at::equal(read, tensor)) << name;
    }
    const StoredAdapter of_step = open_adapter(step);
    EXPECT_THAT(of_step.description.layers, ElementsAre(kLayer));
    EXPECT_EQ(of_step.names.size(), back.names.size());
  }
}

TEST_F(PeftFolder, IsCastWhenAsked) {
  const fs::path step = checkpoint(described(), adapter_tensors(""));
  export_adapter({.checkpoint_folder = step, .output = folder_ / "peft", .dtype = at::kBFloat16});
  const StoredAdapter back = open_adapter(folder_ / "peft");
  for (const std::string& name : back.weights.names()) EXPECT_EQ(back.weights.dtype(name), at::kBFloat16);
}

TEST_F(PeftFolder, OfWholeWeightsIsRefused) {
  const fs::path step = checkpoint({{"model_type", "llama"}}, {{"lm_head.weight", at::ones({2, 2})}});
  const auto [kind, text] =
      error_of([&] { export_adapter({.checkpoint_folder = step, .output = folder_ / "peft"}); });
  EXPECT_EQ(kind, ErrorKind::kUsage);
  EXPECT_THAT(text, HasSubstr("must hold adapters, but holds all weights of a model"));
  EXPECT_FALSE(fs::exists(folder_ / "peft"));
  EXPECT_THAT(error_of([&] { open_adapter(step); }).second,
              HasSubstr("holds all weights of a model; use model.init_from"));
}

TEST_F(PeftFolder, ThatComputesSomethingElseIsRefusedByItsKey) {
  const std::pair<const char*, json> wrong[] = {{"peft_type", "IA3"},
                                                {"bias", "all"},
                                                {"modules_to_save", {"lm_head"}},
                                                {"rank_pattern", {{"q_proj", 8}}},
                                                {"alpha_pattern", {{"q_proj", 8}}},
                                                {"layer_replication", {{0, 2}}},
                                                {"trainable_token_indices", {1}},
                                                {"target_parameters", {"experts"}},
                                                {"lora_bias", true},
                                                {"use_qalora", true},
                                                {"use_bdlora", true},
                                                {"init_lora_weights", "pissa"},
                                                {"init_lora_weights", "pissa_niter_16"},
                                                {"init_lora_weights", "olora"},
                                                {"init_lora_weights", "corda"},
                                                {"init_lora_weights", "loftq"},
                                                {"init_lora_weights", "lora_ga"},
                                                {"init_lora_weights", "another"},
                                                {"megatron_config", {{"hidden_size", 4}}},
                                                {"alora_invocation_tokens", {1, 2}},
                                                {"kasa_config", {{"beta", 1e-4}}},
                                                {"unknown", 1},
                                                {"unknown", "text"}};
  for (const auto& [key, value] : wrong) {
    EXPECT_THAT(refusal_of(key, value),
                AllOf(HasSubstr(concat((folder_ / "adapter_config.json").string(), ": ", key, " must be ")),
                      HasSubstr("but is " + value.dump())));
  }
}

TEST_F(PeftFolder, MayHaveFirstValuesThatLeaveTheBaseAlone) {
  for (const json& init :
       {json(true), json(false), json("gaussian"), json("eva"), json("orthogonal"), json("mica")}) {
    json config = peft_config();
    config.update({{"init_lora_weights", init},
                   {"eva_config", {{"rho", 2.0}}},
                   {"loftq_config", json::object()},
                   {"base_model_name_or_path", "a/b"},
                   {"task_type", "CAUSAL_LM"},
                   {"qalora_group_size", 16},
                   {"megatron_core", "megatron.core"},
                   {"peft_version", "0.21.2"},
                   {"inference_mode", true}});
    write(config);
    EXPECT_EQ(open().description.lora.rank, 2) << init;
  }
}

TEST_F(PeftFolder, WithAnImpossibleRankIsRefused) {
  for (const json& rank : {json(0), json(-3), json(2.5), json("2"), json()}) {
    EXPECT_THAT(refusal_of("r", rank),
                HasSubstr("\"r\", the rank of the adapters, must be a whole number of at "
                          "least 1, but is " +
                          rank.dump()));
  }
}

TEST_F(PeftFolder, WithAMalformedConfigIsRefused) {
  json lacking = peft_config();
  lacking.erase("lora_alpha");
  write(lacking);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("must have PEFT's keys peft_type, r, lora_alpha"),
                               HasSubstr("lora_alpha"), HasSubstr("save the adapter again")));
  write(json::array({1}));
  EXPECT_THAT(refusal(), HasSubstr("adapter_config.json"));
  EXPECT_THAT(refusal_of("use_dora", 3), HasSubstr("must have PEFT's keys"));
  for (const char* text : {"", "{", "\xff", "{\"r\": 2"}) {
    folder_.write("adapter_config.json", text);
    EXPECT_THAT(refusal(), HasSubstr("adapter_config.json")) << text;
  }
}

TEST_F(PeftFolder, WithoutUsableWeightsIsRefused) {
  testing::write_safetensors(folder_ / "adapter_model.safetensors",
                             {{"base_model.model.model.norm.weight", at::ones({2})}});
  EXPECT_THAT(refusal(),
              HasSubstr("must belong to adapters, but base_model.model.model.norm.weight does not"));
  folder_.write("adapter_model.safetensors", "no tensors");
  EXPECT_THAT(refusal(), HasSubstr("adapter_model.safetensors"));
  fs::remove(folder_ / "adapter_model.safetensors");
  EXPECT_NE(error_of([&] { open(); }).second.find("adapter_model.safetensors"), std::string::npos);
  fs::remove(folder_ / "adapter_config.json");
  EXPECT_THAT(refusal(), HasSubstr("lora.init_from must be a folder of PEFT with adapter_config.json"));
  EXPECT_THAT(error_of([&] { open_adapter(folder_ / "none"); }).second, HasSubstr("is neither"));
}

}  // namespace
}  // namespace fsdp::checkpoint
