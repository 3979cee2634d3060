#include "state/weights/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "base/tensor/rectangle_view.h"
#include "support/checkpoint_fixtures.h"
#include "support/safetensors_files.h"

namespace fsdp::checkpoint {
namespace {

namespace fs = std::filesystem;
using namespace fsdp::testing;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

TEST_F(WeightsTest, OfWholeNumbersAreNotReadAsFloats) {
  write_safetensors(folder_.path() / "w.safetensors", {{"n", at::arange(12).view({4, 3})}});
  const Weights weights = open_weights(folder_.path() / "w.safetensors");
  const auto expect_refused = [&](const util::Rectangle& part) {
    const at::Tensor tensor = at::zeros({part.numel()});
    auto [kind, text] = error_of([&] { weights.read_part_into("n", part, tensor); });
    EXPECT_EQ(kind, ErrorKind::kCheckpoint);
    EXPECT_THAT(text, HasSubstr("w.safetensors must have the type float32, but has int64"));
  };
  expect_refused({1, 2, 4});  // a column
  expect_refused({0, 3, 4, 1, 3});
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
  EXPECT_THAT(text, HasSubstr("has the shape [4], but the model expects [2, 2]"));
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

/// Counts the bytes that are read from a file.
class CountingSource final : public TensorSource {
 public:
  explicit CountingSource(const fs::path& path) : inner_(path) {}
  const fs::path& path() const override { return inner_.path(); }
  std::vector<TensorInfo> infos() const override { return inner_.infos(); }
  void read(const std::string& name, int64_t begin, int64_t end, void* out) const override {
    bytes += (end - begin) * static_cast<int64_t>(c10::elementSize(inner_.entry(name).dtype));
    inner_.read(name, begin, end, out);
  }
  mutable int64_t bytes = 0;

 private:
  SafetensorsReader inner_;
};

TEST_F(WeightsTest, AreReadByRectanglesOfAnyView) {
  at::Tensor small = at::randn({12, 10}), wide = at::randn({6, 5000}).to(at::kBFloat16);
  write_safetensors(folder_.path() / "w.safetensors", {{"small", small}, {"wide", wide}});
  auto source = std::make_shared<CountingSource>(folder_.path() / "w.safetensors");
  Weights weights;
  weights.add(source);
  struct Case {
    at::Tensor whole;
    util::Rectangle part;
    int64_t bytes;
  };
  const std::vector<Case> cases = {
      {small, {7, 93}, (93 - 7) * 4},              // a range
      {small, {3, 7, 12}, 12 * 10 * 4},            // pieces too small to be read apart
      {small, {3, 7, 12, 2, 5}, 3 * 10 * 4},       // of some rows
      {small, {0, 40, 3}, 12 * 10 * 4},            // all of it
      {small, {0, 40, 3, 1, 2}, 40 * 4},           // a row
      {small, {4, 4, 12}, 0},                      // nothing
      {small, {4, 7, 12, 5, 5}, 0},                // nothing
      {wide, {100, 2300, 6}, 6 * 2200 * 2},        // a piece of each row
      {wide, {100, 2300, 6, 4, 6}, 2 * 2200 * 2},  // of some rows
      {wide, {4999, 5000, 6}, 6 * 5000 * 2},       // a column
      {wide, {12000, 15000, 2}, 2 * 3000 * 2},     // rows that are not the tensor's own
  };
  for (const auto& [whole, part, bytes] : cases) {
    const std::string name = whole.is_same(small) ? "small" : "wide";
    const std::string what = concat(name, ", columns from ", part.begin, ", rows from ", part.row_begin);
    at::Tensor read = at::zeros({part.numel()});
    source->bytes = 0;
    weights.read_part_into(name, part, read);
    const at::Tensor expected = util::rectangle_view(whole, part).flatten();
    EXPECT_TRUE(at::equal(read, expected.to(at::kFloat))) << what;
    EXPECT_EQ(source->bytes, bytes) << what;
  }
}

TEST(Weights, ThatDoNotFitAnotherTypeAreRefusedByNameOrMadeItsLargest) {
  TemporaryFolder root;
  const at::Tensor values =
      at::tensor({1.0F, -70000.0F, 65503.0F, std::numeric_limits<float>::infinity(), 65519.0F});
  write_safetensors(root / "a.safetensors", {{"big", values}, {"double", at::tensor({1e300}, at::kDouble)}});
  Weights weights = open_weights(root / "a.safetensors");
  at::Tensor read = at::empty({5}, at::kHalf);
  const auto stream = [&] {
    weights.stream("big", 0, 5, at::kHalf, [&](const at::Tensor& slice) { read.copy_(slice); });
  };
  for (const auto& convert :
       {std::function([&] { weights.read_into("big", read); }), std::function(stream)}) {
    const auto [kind, text] = error_of(convert);
    EXPECT_EQ(kind, ErrorKind::kCheckpoint);
    EXPECT_THAT(text, AllOf(HasSubstr("tensor big"), HasSubstr("float16"), HasSubstr("but 1 are larger"),
                            HasSubstr("`saturate`")));
  }
  at::Tensor narrow = at::empty({1});
  EXPECT_THAT(error_of([&] { weights.read_into("double", narrow); }).second, HasSubstr("tensor double"));
  weights.read_into("big", at::empty({5}, at::kBFloat16));
  weights.set_saturating(true);
  for (const auto& convert :
       {std::function([&] { weights.read_into("big", read); }), std::function(stream)}) {
    convert();
    EXPECT_TRUE(
        at::equal(read.to(at::kFloat),
                  at::tensor({1.0F, -65504.0F, 65504.0F, std::numeric_limits<float>::infinity(), 65504.0F})))
        << read;
  }
}

}  // namespace
}  // namespace fsdp::checkpoint
