#include "checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/checkpoint_fixtures.h"

namespace fsdp::checkpoint {
namespace {

using namespace fsdp::testing;
using ::testing::HasSubstr;
using util::ErrorKind;

Manifest manifest_of(int64_t tensors) {
  Manifest manifest;
  manifest.step = 7;
  manifest.world_size = 1;
  manifest.layout = "flat";
  manifest.files.push_back({"rank-00000.h5", 4096, "0123456789abcdef"});
  for (int64_t i = 0; i < tensors; ++i) {
    manifest.tensors.emplace(util::concat("model/layers.", i / 100, ".w", i % 100),
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

}  // namespace
}  // namespace fsdp::checkpoint
