#include "checkpoint/hugging_face_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/checkpoint_fixtures.h"

namespace fsdp::checkpoint {
namespace {

using namespace fsdp::testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using util::ErrorKind;

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
