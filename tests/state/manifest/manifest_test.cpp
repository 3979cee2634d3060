#include "state/manifest/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/checkpoint_fixtures.h"
#include "support/resident_memory.h"

namespace fsdp::checkpoint {
namespace {

using namespace fsdp::testing;
using ::testing::HasSubstr;

Manifest manifest_of(int64_t tensors) {
  Manifest manifest;
  manifest.step = 7;
  manifest.world_size = 1;
  manifest.layout = "flat";
  manifest.files.push_back({"rank-00000.h5", 4096, "0123456789abcdef"});
  for (int64_t i = 0; i < tensors; ++i) {
    manifest.tensors.emplace(concat("model/layers.", i / 100, ".w", i % 100),
                             TensorEntry{.shape = {2, 3}, .ranges = {{.part = {0, 6}, .file = 0}}});
  }
  manifest.training = {{"samples", 28}, {"scale", 65536.0}, {"name", "\u00e4"}};
  return manifest;
}

// Quadratic in the tensors this is a matter of minutes.
TEST(Manifest, OfManyTensorsIsReadInLinearTime) {
  const int64_t tensors = 150'000;
  const Manifest read = parse_manifest(manifest_text(manifest_of(tensors)), "the manifest");
  ASSERT_EQ(read.tensors.size(), static_cast<size_t>(tensors));
  const TensorEntry& entry = read.tensors.at("model/layers.1499.w99");
  EXPECT_EQ(entry.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(entry.numel_in(0), 6);
  EXPECT_EQ(read.training["scale"], 65536.0);
}

TEST(Manifest, IsReadWhateverTheOrderOfItsKeys) {
  // Files behind tensors and the seal first, as another program may write them.
  auto sorted = nlohmann::json::parse(manifest_text(manifest_of(3)));
  nlohmann::ordered_json reversed = nlohmann::ordered_json::object();
  std::vector<std::string> keys;
  for (const auto& [key, value] : sorted.items()) keys.insert(keys.begin(), key);
  for (const std::string& key : keys) reversed[key] = sorted[key];
  EXPECT_EQ(parse_manifest(reversed.dump(3), "the manifest").tensors.size(), 3u);
}

TEST(Manifest, ThatGivesAKeyTwiceInsideATensorIsRefused) {
  std::string text = manifest_text(manifest_of(2));
  const size_t shape = text.find("\"shape\"");
  text.insert(shape, "\"shape\": [6], ");
  auto [kind, message] = error_of([&] { parse_manifest(text, "the manifest"); });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(message, HasSubstr("the manifest gives \"shape\" twice"));
}

/// Ranges by rule stand for as many ranges as there are files.
TEST(Manifest, ThatSaysMillionsOfRangesByRuleIsRefusedWithoutMakingThem) {
  constexpr int64_t kFiles = 4000, kRanges = 2000;
  Manifest manifest = manifest_of(0);
  manifest.files.clear();
  for (int64_t i = 0; i < kFiles; ++i) {
    manifest.files.push_back({concat("rank-", i, ".h5"), 4096, "0123456789abcdef"});
  }
  nlohmann::json object = nlohmann::json::parse(manifest_text(manifest));
  const auto text_with = [&object](const nlohmann::json& tensors) {
    object.erase("seal");
    object["version"] = 4;
    object["tensors"] = tensors;
    object["seal"] = seal_of(object);
    return object.dump();
  };
  const auto range = [=](int64_t begin) {
    return nlohmann::json{{"file", "rank-0.h5"},
                          {"begin", begin},
                          {"end", begin + 1},
                          {"repeat", {{{"count", kFiles}, {"files", 1}, {"begin", 3 * kRanges}}}}};
  };
  // Many in one tensor, and one in each of many.
  nlohmann::json one = {{"dtype", "uint8"}, {"shape", {3 * kRanges * kFiles}}}, many;
  for (int64_t i = 0; i < kRanges; ++i) {
    one["ranges"].push_back(range(2 * i));
    many[concat("model/", i)] = {
        {"dtype", "uint8"}, {"shape", {3 * kRanges * kFiles}}, {"ranges", nlohmann::json::array({range(0)})}};
  }
  for (const auto& [what, text] :
       {std::pair{"one", text_with({{"model/w", one}})}, {"many", text_with(many)}}) {
    std::string message;
    const int64_t rise = rise_of_resident_memory(
        [&, &text = text] { message = error_of([&] { parse_manifest(text, "the manifest"); }).second; });
    EXPECT_THAT(message, HasSubstr("the manifest: tensor model/")) << what;
    EXPECT_LT(rise, 64 * static_cast<int64_t>(text.size())) << what;
  }
  EXPECT_THAT(error_of([&] {
                parse_manifest(text_with({{"model/w", one}}), "the manifest");
              }).second,
              HasSubstr("has more ranges in a file than any layout makes"));
}

TEST(Manifest, HasNamesThatCanBePrinted) {
  for (const char* name : {"a\x1b[31mb",
                           "a\xc2\x9b"
                           "31mb",
                           "a\u202eb", "a\u2066b", "a\u2028b", "a\x7f"}) {
    EXPECT_FALSE(is_tensor_name(name)) << name;
    nlohmann::json object = nlohmann::json::parse(manifest_text(manifest_of(1)));
    object.erase("seal");
    object["layout"] = name;
    object["seal"] = seal_of(object);
    EXPECT_THAT(error_of([&] { parse_manifest(object.dump(), "the manifest"); }).second,
                HasSubstr("\"layout\""));
  }
  EXPECT_TRUE(is_tensor_name("modèle.\u05d0"));
}

}  // namespace
}  // namespace fsdp::checkpoint
