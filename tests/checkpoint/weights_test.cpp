#include "checkpoint/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/checkpoint_fixtures.h"
#include "support/safetensors_files.h"

namespace fsdp::checkpoint {
namespace {

namespace fs = std::filesystem;
using namespace fsdp::testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using util::ErrorKind;

class WeightsTest : public ::testing::Test {
 protected:
  void write_index(const nlohmann::json& map) {
    std::ofstream(folder_.path() / "model.safetensors.index.json")
        << nlohmann::json{{"metadata", {{"total_size", 1}}}, {"weight_map", map}};
  }
  void expect_refused(const std::string& what) {
    auto [kind, text] = error_of([&] { open_weights(folder_.path()); });
    EXPECT_EQ(kind, ErrorKind::kCheckpoint);
    EXPECT_THAT(text, HasSubstr(what));
  }
  TemporaryFolder folder_;
};

TEST_F(WeightsTest, ComeFromAFileOrAFolderWithTheOneFile) {
  at::Tensor w = at::arange(6, at::kFloat).view({2, 3});
  write_safetensors(folder_.path() / "model.safetensors", {{"w", w}});
  for (const fs::path& path : {folder_.path(), folder_.path() / "model.safetensors"}) {
    Weights weights = open_weights(path);
    EXPECT_THAT(weights.names(), ElementsAre("w"));
    EXPECT_THAT(weights.shape("w"), ElementsAre(2, 3));
    EXPECT_EQ(weights.dtype("w"), at::kFloat);
    at::Tensor read = at::zeros({2, 3});
    weights.read_into("w", read);
    EXPECT_TRUE(same_bits(w, read));
  }
}

TEST_F(WeightsTest, ComeFromTheFilesThatAnIndexNames) {
  write_safetensors(folder_.path() / "a.safetensors", {{"x", at::ones({2})}, {"unlisted", at::ones({1})}});
  write_safetensors(folder_.path() / "b.safetensors", {{"y", at::full({3}, 2.0)}});
  write_index({{"x", "a.safetensors"}, {"y", "b.safetensors"}});
  Weights weights = open_weights(folder_.path());
  EXPECT_THAT(weights.names(), ElementsAre("x", "y"));
  at::Tensor y = at::zeros({3});
  weights.read_into("y", y);
  EXPECT_TRUE(same_bits(y, at::full({3}, 2.0f)));
}

TEST_F(WeightsTest, AreConvertedBetweenFloatingPointTypes) {
  at::Tensor w = at::linspace(-3, 3, 1001).to(at::kBFloat16);
  write_safetensors(folder_.path() / "w.safetensors", {{"w", w}, {"n", at::arange(3, at::kLong)}});
  Weights weights = open_weights(folder_.path() / "w.safetensors");
  at::Tensor as_float = at::zeros({1001}), part = at::zeros({10}, at::kDouble), n = at::zeros({3});
  weights.read_into("w", as_float);
  EXPECT_TRUE(same_bits(as_float, w.to(at::kFloat)));
  weights.read_range_into("w", 991, part);
  EXPECT_TRUE(same_bits(part, w.narrow(0, 991, 10).to(at::kDouble)));
  EXPECT_EQ(error_of([&] { weights.read_into("n", n); }).first, ErrorKind::kCheckpoint);
}

TEST_F(WeightsTest, LargerThanASliceAreConvertedWhole) {
  at::Tensor w = at::arange(9'000'001, at::kInt).remainder(251).to(at::kHalf);
  write_safetensors(folder_.path() / "w.safetensors", {{"w", w}});
  at::Tensor read = at::zeros({9'000'001});
  open_weights(folder_.path() / "w.safetensors").read_into("w", read);
  EXPECT_TRUE(same_bits(read, w.to(at::kFloat)));
}

TEST_F(WeightsTest, ThatDoNotFitNameTheTensorAndBothShapes) {
  write_safetensors(folder_.path() / "w.safetensors", {{"model.norm.weight", at::ones({4})}});
  Weights weights = open_weights(folder_.path() / "w.safetensors");
  at::Tensor wrong = at::zeros({2, 2});
  auto [kind, text] = error_of([&] { weights.read_into("model.norm.weight", wrong); });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text, HasSubstr("has the shape [4] and the model expects [2, 2]"));
  EXPECT_THAT(error_of([&] { weights.shape("model.norm.wieght"); }).second,
              HasSubstr("the nearest name in them is model.norm.weight"));
}

TEST_F(WeightsTest, AreRefusedWhereThereAreNone) {
  expect_refused("neither model.safetensors nor");
  EXPECT_EQ(error_of([&] { open_weights(folder_.path() / "absent"); }).first, ErrorKind::kCheckpoint);
}

TEST_F(WeightsTest, RefuseAnIndexThatPointsElsewhereOrAtNothing) {
  write_safetensors(folder_.path() / "a.safetensors", {{"x", at::ones({2})}});
  for (const char* file : {"../a.safetensors", "/etc/passwd", "..", ""}) {
    write_index({{"x", file}});
    expect_refused("tensor x");
  }
  write_index({{"x", 5}});
  expect_refused("tensor x");
  write_index({{"z", "a.safetensors"}});
  expect_refused("has no tensor z");
  write_index({{"x", "absent.safetensors"}});
  expect_refused("absent.safetensors");
  write_index(nlohmann::json::array());
  expect_refused("weight_map");
}

}  // namespace
}  // namespace fsdp::checkpoint
