#include "state/convert/consolidate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "state/checkpoint/load.h"
#include "state/convert/inspect.h"
#include "state/weights/safetensors.h"
#include "state/weights/weights.h"
#include "support/checkpoint_fixtures.h"
#include "support/resident_memory.h"

namespace fsdp::checkpoint {
namespace {

namespace fs = std::filesystem;
using namespace fsdp::testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(Consolidate, WritesTheWeightsBitwiseAndNothingElse) {
  TemporaryFolder root;
  NamedTensors tensors = assorted_tensors();
  fs::path step = save_checkpoint(root.path(), tensors, 3);
  ConsolidateResult result = consolidate(step, root.path() / "out.safetensors", {});
  EXPECT_EQ(result.output, root.path() / "out.safetensors");
  EXPECT_FALSE(result.config);
  Weights weights = open_weights(result.output);
  EXPECT_EQ(weights.names().size(), 6u);
  for (const auto& [name, tensor] : tensors) {
    if (!name.starts_with("model/")) continue;
    at::Tensor read = at::zeros_like(tensor);
    weights.read_into(name.substr(6), read);
    EXPECT_TRUE(same_bits(tensor, read)) << name;
  }
}

TEST(Consolidate, MakesAFolderThatHuggingFaceReads) {
  TemporaryFolder root;
  fs::path step = save_checkpoint(root.path(), {{"model/w", at::rand({5, 5})}}, 2);
  ConsolidateResult result = consolidate(step, root.path() / "a" / "hf", {.dtype = at::kBFloat16});
  EXPECT_EQ(result.bytes, 50);
  EXPECT_EQ(open_weights(root.path() / "a" / "hf").dtype("w"), at::kBFloat16);
  auto config = nlohmann::json::parse(util::read_file(root.path() / "a" / "hf" / "config.json"));
  EXPECT_EQ(config["vocab_size"], 13);
  EXPECT_EQ(config["torch_dtype"], "bfloat16");
}

TEST(Consolidate, CastsFloatingPointWeightsOnly) {
  TemporaryFolder root;
  at::Tensor w = at::rand({100});
  fs::path step = save_checkpoint(root.path(), {{"model/w", w}, {"model/n", at::arange(3, at::kLong)}}, 2);
  consolidate(step, root.path() / "out.safetensors", {.dtype = at::kHalf});
  Weights weights = open_weights(root.path() / "out.safetensors");
  EXPECT_EQ(weights.dtype("n"), at::kLong);
  at::Tensor read = at::zeros({100}, at::kHalf);
  weights.read_into("w", read);
  EXPECT_TRUE(same_bits(read, w.to(at::kHalf)));
}

TEST(Consolidate, NeverOverwritesUnlessForced) {
  TemporaryFolder root;
  fs::path step = save_checkpoint(root.path(), {{"model/w", at::ones({5})}}, 1);
  fs::path file = root.path() / "out.safetensors", folder = root.path() / "hf";
  fs::create_directory(folder);
  std::ofstream(file) << "precious";
  std::ofstream(folder / "config.json") << "precious";
  for (const fs::path& output : {file, folder}) {
    auto [kind, text] = error_of([&] { consolidate(step, output, {}); });
    EXPECT_EQ(kind, ErrorKind::kCheckpoint);
    EXPECT_THAT(text, HasSubstr("`overwrite`"));
  }
  EXPECT_EQ(util::read_file(file), "precious");
  EXPECT_FALSE(fs::exists(folder / "model.safetensors"));
  for (const fs::path& output : {file, folder}) consolidate(step, output, {.dtype = {}, .overwrite = true});
  EXPECT_TRUE(open_weights(file).contains("w"));
  EXPECT_TRUE(open_weights(folder).contains("w"));
}

TEST(Consolidate, RefusesADamagedShardEvenOfTheOptimizer) {
  TemporaryFolder root;
  NamedTensors tensors{{"model/w", at::ones({2})}, {"optimizer/m", at::ones({5000})}};
  fs::path step = save_checkpoint(root.path(), tensors, 2);
  flip_byte(step / "rank-00001.h5", static_cast<int64_t>(fs::file_size(step / "rank-00001.h5")) - 50);
  auto [kind, text] = error_of([&] { consolidate(step, root.path() / "out.safetensors", {}); });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text, HasSubstr("rank-00001.h5 is damaged"));
  EXPECT_FALSE(fs::exists(root.path() / "out.safetensors"));
}

TEST(Consolidate, SplitsAndReplacesAnEarlierOutputWhole) {
  TemporaryFolder root;
  NamedTensors tensors{
      {"model/a", at::rand({100})}, {"model/b", at::rand({100})}, {"model/c", at::rand({100})}};
  fs::path step = save_checkpoint(root.path(), tensors, 2), folder = root.path() / "hf";
  fs::create_directory(folder);
  std::ofstream(folder / "tokenizer.json") << "precious";
  ConsolidateResult split = consolidate(step, folder, {.overwrite = true, .max_file_bytes = 800});
  EXPECT_EQ(split.files, 2);
  EXPECT_TRUE(fs::exists(folder / "model-00002-of-00002.safetensors"));
  EXPECT_EQ(open_weights(folder).names().size(), 3u);
  consolidate(step, folder, {.overwrite = true});
  EXPECT_FALSE(fs::exists(folder / "model-00002-of-00002.safetensors"));
  EXPECT_FALSE(fs::exists(folder / "model.safetensors.index.json"));
  EXPECT_EQ(open_weights(folder).names().size(), 3u);
  EXPECT_EQ(util::read_file(folder / "tokenizer.json"), "precious");
}

TEST(Consolidate, MakesAFullCheckpointThatLoadsBitwise) {
  TemporaryFolder root;
  const NamedTensors tensors = assorted_tensors();
  fs::path step = save_checkpoint(root.path(), tensors, 3), full = root.path() / "full";
  ConsolidateResult result = consolidate(step, full, {.full = true, .optimizer = true});
  EXPECT_EQ(result.tensors, 10);
  EXPECT_THAT(find_damage(full), IsEmpty());
  Manifest manifest = read_manifest(full);
  EXPECT_EQ(manifest.layout, "full");
  EXPECT_EQ(manifest.world_size, 1);
  ASSERT_EQ(manifest.files.size(), 1u);
  EXPECT_EQ(manifest.files[0].name, "full.h5");
  EXPECT_EQ(manifest.contents, Contents::kState);
  EXPECT_EQ(manifest.training, read_manifest(step).training);
  NamedTensors loaded = zeros_like(tensors);
  for (int rank = 0; rank < 2; ++rank) load_slices(full, manifest, slices_of(loaded, rank, 2));
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(same_bits(tensors[i].second, loaded[i].second)) << tensors[i].first;
  }
}

TEST(Consolidate, MakesAFullCheckpointOfTheWeightsAlone) {
  TemporaryFolder root;
  fs::path step = save_checkpoint(root.path(), assorted_tensors(), 2), full = root.path() / "full";
  consolidate(step, full, {.dtype = at::kFloat, .full = true});
  Manifest manifest = read_manifest(full);
  EXPECT_EQ(manifest.contents, Contents::kWeights);
  EXPECT_TRUE(manifest.training.is_null());
  EXPECT_EQ(manifest.tensors.size(), 6u);
  EXPECT_EQ(manifest.tensors.at("model/scale").dtype, at::kFloat);
  EXPECT_EQ(error_of([&] { consolidate(step, full, {.full = true}); }).first, ErrorKind::kCheckpoint);
}

TEST(Consolidate, RefusesOptionsThatDoNotGoTogether) {
  TemporaryFolder root;
  fs::path step = save_checkpoint(root.path(), {{"model/w", at::ones({5})}}, 1);
  auto expect_refused = [&](const char* output, const ConsolidateOptions& options, const char* what) {
    auto [kind, text] = error_of([&] { consolidate(step, root.path() / output, options); });
    EXPECT_EQ(kind, ErrorKind::kUsage) << what;
    EXPECT_THAT(text, HasSubstr(what));
    EXPECT_FALSE(fs::exists(root.path() / output));
  };
  expect_refused("o.h5", {}, "`full`");
  expect_refused("o.safetensors", {.full = true}, "`full`");
  expect_refused("o", {.overwrite = true, .full = true}, "`overwrite`");
  expect_refused("o", {.optimizer = true}, "`optimizer`");
  expect_refused("o.safetensors", {.max_file_bytes = 5}, "`max_file_bytes`");
  expect_refused("o", {.full = true, .max_file_bytes = 5}, "`max_file_bytes`");
}

TEST(Consolidate, WritesAveragesInPlaceOfTheWeightsThatHaveThem) {
  TemporaryFolder root;
  const at::Tensor w = at::rand({6}), average = at::rand({6}), frozen = at::rand({3});
  fs::path step = save_checkpoint(
      root.path(), {{"model/w", w}, {"model/frozen", frozen}, {"optimizer/ema/w", average}}, 2);
  auto read = [](const fs::path& path, const std::string& name, int64_t numel) {
    at::Tensor tensor = at::zeros({numel});
    open_weights(path).read_into(name, tensor);
    return tensor;
  };
  consolidate(step, root / "out.safetensors", {.ema = true});
  EXPECT_TRUE(same_bits(read(root / "out.safetensors", "w", 6), average));
  EXPECT_TRUE(same_bits(read(root / "out.safetensors", "frozen", 3), frozen));
  consolidate(step, root / "full", {.ema = true, .full = true});
  EXPECT_TRUE(same_bits(read(root / "full", "w", 6), average));

  fs::path plain = save_checkpoint(root.path(), {{"model/w", w}}, 1, 200);
  auto [kind, text] = error_of([&] { consolidate(plain, root / "other.safetensors", {.ema = true}); });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text, HasSubstr("contains no averages"));
  EXPECT_EQ(
      error_of([&] { consolidate(step, root / "x", {.ema = true, .full = true, .optimizer = true}); }).first,
      ErrorKind::kUsage);
}

TEST(Consolidate, RefusesACheckpointWithoutWeights) {
  TemporaryFolder root;
  fs::path step = save_checkpoint(root.path(), {{"optimizer/m", at::ones({5})}}, 1);
  EXPECT_THAT(error_of([&] { consolidate(step, root.path() / "o.safetensors", {}); }).second,
              HasSubstr("contains no weights"));
}

TEST(Consolidate, AndSavingNeedMemoryForSlicesNotForTensors) {
  TemporaryFolder root;
  constexpr int64_t kNumel = 40'000'003;  // 160 MB: ten slices and a piece
  fs::path step;
  {
    at::Tensor w = at::arange(kNumel, at::kInt).view(at::kFloat);
    const int64_t rise = rise_of_resident_memory([&] {
      step = save_checkpoint(root.path(), {{"model/w", w}}, 3);
    });
    EXPECT_LT(rise, int64_t{32} << 20) << "shards were copied to be saved";
  }
  const int64_t rise =
      rise_of_resident_memory([&] { consolidate(step, root.path() / "out.safetensors", {}); });
  EXPECT_LT(rise, int64_t{64} << 20) << "the tensor was read whole";
  SafetensorsReader reader(root.path() / "out.safetensors");
  at::Tensor tail = at::empty({1000}, at::kInt);
  reader.read("w", kNumel - 1000, kNumel, tail.data_ptr());
  EXPECT_TRUE(same_bits(tail, at::arange(kNumel - 1000, kNumel, at::kInt)));
  at::Tensor middle = at::empty({1000}, at::kInt);
  reader.read("w", (4 << 20) - 500, (4 << 20) + 500, middle.data_ptr());
  EXPECT_TRUE(same_bits(middle, at::arange((4 << 20) - 500, (4 << 20) + 500, at::kInt)));
}

std::vector<std::vector<std::string>> names_of(const HuggingFaceFolder& folder) {
  std::vector<std::vector<std::string>> names;
  for (const auto& [file, infos] : folder.files) {
    names.emplace_back();
    for (const TensorInfo& info : infos) names.back().push_back(info.name);
  }
  return names;
}

TEST(HuggingFaceFolder, HasOneFileWithoutAnIndexWhereThatIsEnough) {
  const std::vector<TensorInfo> infos = {{"a", {10}}, {"b", {10}}};
  for (int64_t most : {0, 80, 1000}) {
    HuggingFaceFolder folder = plan_hugging_face_folder(infos, most);
    ASSERT_EQ(folder.files.size(), 1u);
    EXPECT_EQ(folder.files[0].first, "model.safetensors");
    EXPECT_FALSE(folder.index);
  }
}

TEST(HuggingFaceFolder, IsSplitAsTransformersDoes) {
  HuggingFaceFolder folder =
      plan_hugging_face_folder({{"a", {10}}, {"b", {10}}, {"c", {1000}}, {"d", {1}}}, 80);
  EXPECT_THAT(names_of(folder), ElementsAre(ElementsAre("a", "b"), ElementsAre("c"), ElementsAre("d")));
  EXPECT_EQ(folder.files[0].first, "model-00001-of-00003.safetensors");
  EXPECT_EQ(folder.files[2].first, "model-00003-of-00003.safetensors");
  ASSERT_TRUE(folder.index);
  EXPECT_EQ((*folder.index)["metadata"]["total_size"], 4084);
  EXPECT_EQ((*folder.index)["weight_map"]["c"], "model-00002-of-00003.safetensors");
  EXPECT_EQ((*folder.index)["weight_map"].size(), 4u);
}

TEST(HuggingFaceFolder, KnowsItsWeightsFiles) {
  for (const char* name :
       {"model.safetensors", "model.safetensors.index.json", "model-00001-of-00002.safetensors"}) {
    EXPECT_TRUE(is_weights_file(name)) << name;
  }
  for (const char* name : {"model-1-of-2.safetensors", "tokenizer.json", "config.json",
                           "model-00001-of-00002.safetensors.bak", ""}) {
    EXPECT_FALSE(is_weights_file(name)) << name;
  }
}

TEST(HuggingFaceFolder, SizesAreReadAsTransformersReadsThem) {
  EXPECT_EQ(parse_size("5GB"), 5'000'000'000);
  EXPECT_EQ(parse_size("500MiB"), 524'288'000);
  EXPECT_EQ(parse_size("1KB"), 1000);
  EXPECT_EQ(parse_size("1KiB"), 1024);
  EXPECT_EQ(parse_size("123"), 123);
  for (const char* wrong : {"", "GB", "5 GB", "5gb", "-5GB", "0", "0GB", "5.5GB", "99999999999GB", "5GBB"}) {
    auto [kind, text] = error_of([&] { parse_size(wrong); });
    EXPECT_EQ(kind, ErrorKind::kUsage) << wrong;
    EXPECT_THAT(text, HasSubstr(wrong));
  }
}

}  // namespace
}  // namespace fsdp::checkpoint
