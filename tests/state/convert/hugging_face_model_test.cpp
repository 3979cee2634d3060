#include "state/convert/hugging_face_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "state/convert/inspect.h"
#include "state/hugging_face/hugging_face_config.h"
#include "state/weights/stored_model.h"
#include "state/weights/weights.h"
#include "support/checkpoint_fixtures.h"
#include "support/safetensors_files.h"
#include "support/tiny_models.h"

namespace fsdp::checkpoint {
namespace {

namespace fs = std::filesystem;
using namespace fsdp::testing;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// The weights of a small model under Hugging Face's names.
NamedTensors weights_of(const nn::ModelOptions& options) {
  NamedTensors weights;
  std::set<const void*> seen;
  auto model = make_initialized(options);
  for (const auto& parameter : model->named_parameters()) {
    if (!seen.insert(parameter.value().unsafeGetTensorImpl()).second) continue;
    weights.emplace_back(parameter.key(), parameter.value().detach().clone());
  }
  return weights;
}

void expect_weights(const fs::path& path, const NamedTensors& expected) {
  Weights weights = open_weights(path);
  EXPECT_EQ(weights.names().size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    at::Tensor read = at::zeros_like(tensor);
    weights.read_into(name, read);
    EXPECT_TRUE(same_bits(read, tensor)) << name;
  }
}

class HuggingFaceModel : public ::testing::Test {
 protected:
  /// A folder as transformers would leave it.
  void write(const nn::ModelOptions& options, const NamedTensors& weights) {
    fs::create_directories(folder());
    write_safetensors(folder() / "model.safetensors", weights);
    write_config(hugging_face_config(options));
  }
  void write_config(const nlohmann::json& config) {
    std::ofstream(folder() / "config.json") << config.dump(2);
  }
  ShardedResult import(int64_t world_size = 1) {
    return import_model({.source = folder(), .config = {}, .output = output(), .world_size = world_size});
  }
  void expect_refused(const std::string& text) {
    auto [kind, found] = error_of([&] { import(); });
    EXPECT_EQ(kind, ErrorKind::kCheckpoint);
    EXPECT_THAT(found, HasSubstr(text));
    EXPECT_FALSE(fs::exists(output()));
  }
  fs::path folder() const { return root_.path() / "hf"; }
  fs::path output() const { return root_.path() / "step-00000000"; }
  TemporaryFolder root_;
};

TEST_F(HuggingFaceModel, IsTheSameAfterImportAndExport) {
  for (const char* architecture : {"llama", "gpt2"}) {
    for (int64_t world_size : {1, 2, 3, 40}) {
      nn::ModelOptions options = tiny_options(architecture);
      options.tie_word_embeddings = world_size % 2 == 0;
      const NamedTensors weights = weights_of(options);
      write(options, weights);
      ShardedResult imported = import(world_size);
      EXPECT_EQ(imported.tensors, static_cast<int64_t>(weights.size()));
      EXPECT_THAT(find_damage(output()), IsEmpty());
      expect_weights(output(), weights);

      const fs::path exported = root_.path() / "exported";
      export_model(output(), exported, {});
      expect_weights(exported, weights);
      EXPECT_EQ(util::read_file(exported / "model.safetensors"),
                util::read_file(folder() / "model.safetensors"));
      EXPECT_EQ(nlohmann::json::parse(util::read_file(exported / "config.json")),
                hugging_face_config(options));
      for (const fs::path& path : {folder(), output(), exported}) fs::remove_all(path);
    }
  }
}

TEST_F(HuggingFaceModel, SplitOverFilesIsImportedFromItsIndex) {
  const nn::ModelOptions options = tiny_options("gpt2");
  const NamedTensors weights = weights_of(options);
  write(options, weights);
  import(2);
  const fs::path split = root_.path() / "split", again = root_.path() / "again";
  ConsolidateResult exported = export_model(output(), split, {.max_file_bytes = 3000});
  EXPECT_GT(exported.files, 3);
  EXPECT_EQ(exported.output, split / "model.safetensors.index.json");
  EXPECT_FALSE(fs::exists(split / "model.safetensors"));
  import_model({.source = split, .config = {}, .output = again, .world_size = 3});
  expect_weights(again, weights);
}

TEST_F(HuggingFaceModel, IsNotTakenForItsAverages) {
  write(tiny_options(), weights_of(tiny_options()));
  import(2);
  EXPECT_NO_THROW(open_model(output(), /*ema=*/false));
  auto [kind, text] = error_of([&] { open_model(output(), /*ema=*/true); });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text, HasSubstr("contains no averages of weights"));
  EXPECT_EQ(error_of([&] { open_model(folder(), /*ema=*/true); }).first, ErrorKind::kUsage);
}

TEST_F(HuggingFaceModel, IsACheckpointOfWeightsOnly) {
  write(tiny_options(), weights_of(tiny_options()));
  import(2);
  const Manifest manifest = read_manifest(output());
  EXPECT_EQ(manifest.contents, Contents::kWeights);
  EXPECT_EQ(manifest.step, 0);
  EXPECT_TRUE(manifest.training.is_null());
  auto [kind, text] = error_of([&] { require_state(manifest, output()); });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text,
              AllOf(HasSubstr("contains weights only"), HasSubstr("model.init_from=" + output().string())));
  for (const std::string& resume : {std::string("auto"), std::string("latest"), output().string()}) {
    EXPECT_EQ(error_of([&] { resolve_resume(root_.path(), resume); }).second, text) << resume;
  }
  EXPECT_FALSE(resolve_resume(root_.path(), "never").folder);
}

TEST_F(HuggingFaceModel, MayHaveNamesWithoutPrefixBuffersAndACopyOfATiedHead) {
  nn::ModelOptions options = tiny_options("gpt2");
  options.tie_word_embeddings = true;
  const NamedTensors weights = weights_of(options);
  NamedTensors bare;
  for (const auto& [name, tensor] : weights)
    bare.emplace_back(name.substr(std::strlen("transformer.")), tensor);
  bare.emplace_back("h.0.attn.bias", at::ones({1, 1, 16, 16}).tril());
  bare.emplace_back("lm_head.weight", weights.front().second);
  write(options, bare);
  import();
  expect_weights(output(), weights);
}

TEST_F(HuggingFaceModel, MayStoreATiedWeightUnderTheHeadsName) {
  nn::ModelOptions options = tiny_options("llama");
  options.tie_word_embeddings = true;
  const NamedTensors weights = weights_of(options);
  NamedTensors stored = weights;
  for (auto& [name, tensor] : stored) {
    if (name == "model.embed_tokens.weight") name = "lm_head.weight";
  }
  write(options, stored);
  import();
  expect_weights(output(), weights);
}

TEST_F(HuggingFaceModel, IsRefusedWhereTheConfigTiesAHeadThatIsStoredWithOtherValues) {
  nn::ModelOptions options = tiny_options("llama");
  options.tie_word_embeddings = true;
  NamedTensors stored = weights_of(options);
  const at::Tensor embedding = stored.front().second;
  ASSERT_EQ(stored.front().first, "model.embed_tokens.weight");
  at::Tensor head = embedding.clone();
  head.view({-1})[head.numel() - 1] += 1;
  stored.emplace_back("lm_head.weight", head);
  write(options, stored);
  const auto expect_refused = [](const std::pair<ErrorKind, std::string>& error) {
    EXPECT_EQ(error.first, ErrorKind::kCheckpoint);
    EXPECT_THAT(error.second, AllOf(HasSubstr("lm_head.weight"), HasSubstr("model.embed_tokens.weight"),
                                    HasSubstr("\"tie_word_embeddings\": false")));
  };
  expect_refused(error_of([&] { import(); }));
  expect_refused(error_of([&] { open_model(folder()); }));
  options.init_from = folder().string();
  const auto initial = error_of([&] { match_initial_weights(open_weights(folder()), options); });
  expect_refused(initial);
  EXPECT_THAT(initial.second, HasSubstr("model.init_unused"));
  options.init_unused = {"lm_head.weight"};
  EXPECT_EQ(match_initial_weights(open_weights(folder()), options).count("lm_head.weight"), 0U);
  // The key that the message names takes the stored head.
  options.tie_word_embeddings = false;
  write_config(hugging_face_config(options));
  import();
  expect_weights(output(), stored);
}

TEST_F(HuggingFaceModel, MayHaveOnlyTheBuffersThatTransformersIsKnownToStore) {
  const NamedTensors weights = weights_of(tiny_options());
  const auto unexpected = [&](const std::string& name, const at::Tensor& tensor) {
    NamedTensors stored = weights;
    stored.emplace_back(name, tensor);
    write(tiny_options(), stored);
    const auto misfits = match_weights(open_weights(folder()), tiny_options()).misfits;
    return misfits.unexpected == std::vector{name};
  };
  EXPECT_FALSE(unexpected("model.layers.0.self_attn.rotary_emb.inv_freq", at::ones({3})));
  EXPECT_FALSE(unexpected("model.rotary_emb.inv_freq", at::ones({3})));
  // Biases of another model's attention, a layer that the model has not, and a mask of a model without masks.
  EXPECT_TRUE(unexpected("model.layers.0.attention.bias", at::ones({12})));
  EXPECT_TRUE(unexpected("model.layers.0.attn.bias", at::ones({1, 1, 4, 4})));
  EXPECT_TRUE(unexpected("model.layers.77.self_attn.rotary_emb.inv_freq", at::ones({3})));
  EXPECT_TRUE(unexpected("vision.rotary_emb.inv_freq", at::ones({3})));
}

TEST_F(HuggingFaceModel, ComesFromOneFileWithTheConfigBesideItOrNamed) {
  const NamedTensors weights = weights_of(tiny_options());
  write(tiny_options(), weights);
  const fs::path file = folder() / "model.safetensors", config = root_.path() / "named.json";
  import_model({.source = file, .config = {}, .output = root_.path() / "a"});
  fs::rename(folder() / "config.json", config);
  auto [kind, text] =
      error_of([&] { import_model({.source = file, .config = {}, .output = root_.path() / "b"}); });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text, HasSubstr("`config`"));
  import_model({.source = file, .config = config, .output = root_.path() / "b"});
  for (const char* name : {"a", "b"}) expect_weights(root_.path() / name, weights);
}

TEST_F(HuggingFaceModel, IsCastWhenAsked) {
  const NamedTensors weights = weights_of(tiny_options());
  write(tiny_options(), weights);
  import_model(
      {.source = folder(), .config = {}, .output = output(), .world_size = 2, .dtype = at::kBFloat16});
  NamedTensors cast;
  for (const auto& [name, tensor] : weights) cast.emplace_back(name, tensor.to(at::kBFloat16));
  expect_weights(output(), cast);
  export_model(output(), root_.path() / "half", {.dtype = at::kHalf});
  EXPECT_EQ(open_weights(root_.path() / "half").dtype("model.norm.weight"), at::kHalf);
  EXPECT_EQ(nlohmann::json::parse(util::read_file(root_.path() / "half/config.json"))["torch_dtype"],
            "float16");
}

TEST_F(HuggingFaceModel, ThatDoesNotFitItsConfigIsRefusedWithAllThatIsWrong) {
  NamedTensors weights = weights_of(tiny_options());
  for (auto& [name, tensor] : weights) {
    if (name == "model.norm.weight") name = "model.norm.wieght";
    if (name == "model.layers.1.mlp.up_proj.weight") tensor = at::zeros({12, 20});
  }
  write(tiny_options(), weights);
  expect_refused("missing: model.norm.weight");
  expect_refused("unexpected: model.norm.wieght");
  expect_refused("model.layers.1.mlp.up_proj.weight ([12, 20] instead of [20, 12])");

  weights = weights_of(tiny_options());
  weights.front().second = weights.front().second.to(at::kInt);
  write(tiny_options(), weights);
  expect_refused("not of a floating-point type");
}

TEST_F(HuggingFaceModel, WithoutAUsableConfigIsRefused) {
  write(tiny_options(), weights_of(tiny_options()));
  for (const char* text : {"", "{", "[]", "{\"model_type\": \"bert\"}"}) {
    std::ofstream(folder() / "config.json") << text;
    expect_refused("config.json");
  }
}

TEST_F(HuggingFaceModel, NeverReplacesACheckpoint) {
  write(tiny_options(), weights_of(tiny_options()));
  import();
  const std::string manifest = util::read_file(output() / "manifest.json");
  auto [kind, text] = error_of([&] { import(3); });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text, HasSubstr("already exists"));
  EXPECT_EQ(util::read_file(output() / "manifest.json"), manifest);
}

TEST_F(HuggingFaceModel, IsExportedOnlyFromACheckpointThatHasAllOfIt) {
  const fs::path target = root_.path() / "exported";
  auto expect_no_export = [&](const fs::path& step, const std::string& what) {
    auto [kind, text] = error_of([&] { export_model(step, target, {}); });
    EXPECT_EQ(kind, ErrorKind::kCheckpoint);
    EXPECT_THAT(text, HasSubstr(what));
    EXPECT_FALSE(fs::exists(target));
  };
  expect_no_export(save_checkpoint(root_.path() / "a", {{"model/w", at::ones({5})}}, 1), "\"model_type\"");
  fs::path step = save_checkpoint(root_.path() / "b", {{"model/w", at::ones({5})}}, 1);
  edit_manifest(step, [](nlohmann::json& manifest) { manifest["model"] = nullptr; });
  expect_no_export(step, "does not describe the model");
  edit_manifest(step,
                [](nlohmann::json& manifest) { manifest["model"] = hugging_face_config(tiny_options()); });
  expect_no_export(step, "unexpected: w");
  expect_no_export(step, "and 10 more");
}

TEST_F(HuggingFaceModel, IsExportedInFloat16WithoutInfinities) {
  NamedTensors weights = weights_of(tiny_options());
  weights.front().second.view({-1})[3] = 1e5;
  write(tiny_options(), weights);
  import();
  ConsolidateOptions options{.dtype = at::kHalf};
  auto [kind, text] = error_of([&] { export_model(output(), root_.path() / "half", options); });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text, HasSubstr(weights.front().first));
  EXPECT_FALSE(fs::exists(root_.path() / "half"));
  EXPECT_THAT(error_of([&] {
                import_model(
                    {.source = folder(), .config = {}, .output = root_.path() / "again", .dtype = at::kHalf});
              }).second,
              HasSubstr(weights.front().first));
  options.saturate = true;
  export_model(output(), root_.path() / "half", options);
  at::Tensor read = at::empty(weights.front().second.sizes(), at::kHalf);
  open_weights(root_.path() / "half").read_into(weights.front().first, read);
  EXPECT_EQ(read.view({-1})[3].item<float>(), 65504);
}

}  // namespace
}  // namespace fsdp::checkpoint
