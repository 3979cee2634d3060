#include "state/convert/diff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "state/convert/consolidate.h"
#include "support/checkpoint_fixtures.h"
#include "support/safetensors_files.h"

namespace fsdp::checkpoint {
namespace {

namespace fs = std::filesystem;
using namespace fsdp::testing;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Diff : public ::testing::Test {
 protected:
  /// The difference of two safetensors files with one tensor each.
  Difference diff_of(const at::Tensor& a, const at::Tensor& b, const DiffOptions& options = {}) {
    fs::path first = root_.path() / "a.safetensors", second = root_.path() / "b.safetensors";
    write_safetensors(first, {{"w", a}});
    write_safetensors(second, {{"w", b}});
    return diff(first, second, options);
  }
  TemporaryFolder root_;
};

TEST_F(Diff, OfACheckpointAndItsCopyAtAnotherWorldSizeIsEmpty) {
  fs::path a = save_checkpoint(root_.path() / "a", assorted_tensors(), 3);
  fs::path b = save_checkpoint(root_.path() / "b", assorted_tensors(), 2);
  Difference difference = diff(a, root_.path() / "b", {});
  EXPECT_TRUE(difference.empty()) << diff_as_text(difference);
  EXPECT_EQ(difference.equal_tensors, 10);
}

TEST_F(Diff, OfACheckpointAndSafetensorsIsOfTheWeights) {
  fs::path a = save_checkpoint(root_.path() / "a", assorted_tensors(), 3);
  consolidate(a, root_.path() / "hf", {});
  Difference difference = diff(root_.path() / "hf", a, {});
  EXPECT_TRUE(difference.empty()) << diff_as_text(difference);
  EXPECT_EQ(difference.equal_tensors, 6);
}

TEST_F(Diff, FindsOneChangedValueAnywhere) {
  const at::Tensor w = at::arange(3'000'000, at::kInt).to(at::kFloat);
  for (int64_t at : {0, 1'048'575, 1'048'576, 2'999'999}) {
    at::Tensor changed = w.clone();
    changed[at] -= 0.5f;
    Difference difference = diff_of(w, changed);
    ASSERT_EQ(difference.tensors.size(), 1u) << at;
    EXPECT_EQ(difference.tensors[0].differing, 1);
    EXPECT_EQ(difference.tensors[0].max_absolute_difference, 0.5);
    EXPECT_NEAR(difference.tensors[0].max_relative_difference, at == 0 ? 1.0 : 0.5 / static_cast<double>(at),
                1e-15);
  }
}

TEST_F(Diff, TakesTheLargestDifferences) {
  Difference difference = diff_of(at::tensor({100.0f, 1.0f, 2.0f}), at::tensor({104.0f, -1.0f, 2.0f}));
  ASSERT_EQ(difference.tensors.size(), 1u);
  EXPECT_EQ(difference.tensors[0].differing, 2);
  EXPECT_EQ(difference.tensors[0].max_absolute_difference, 4.0);
  EXPECT_EQ(difference.tensors[0].max_relative_difference, 2.0);
}

TEST_F(Diff, NotANumberEqualsItselfAndNothingElse) {
  const float nan = std::nanf(""), infinity = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(diff_of(at::tensor({nan, 0.0f, infinity}), at::tensor({-nan, -0.0f, infinity})).empty());
  Difference difference =
      diff_of(at::tensor({nan, infinity}), at::tensor({1.0f, -infinity}), {.tolerance = 1e300});
  ASSERT_EQ(difference.tensors.size(), 1u);
  EXPECT_EQ(difference.tensors[0].differing, 2);
  EXPECT_TRUE(std::isinf(difference.tensors[0].max_absolute_difference));
  EXPECT_EQ(diff_as_json(difference)["different"][0]["max_absolute_difference"], "inf");
}

TEST_F(Diff, ComparesLargeIntegersExactly) {
  const int64_t large = int64_t{1} << 62;
  Difference difference = diff_of(at::tensor({large, large}), at::tensor({large, large + 1}));
  ASSERT_EQ(difference.tensors.size(), 1u);
  EXPECT_EQ(difference.tensors[0].differing, 1);
  EXPECT_EQ(difference.tensors[0].max_absolute_difference, 1.0);
}

TEST_F(Diff, TellsHowMuchIsCompared) {
  const NamedTensors tensors{{"model/v", at::ones({5}, at::kHalf)}, {"model/w", at::ones({7, 3})}};
  const fs::path a = save_checkpoint(root_ / "a", tensors, 1), b = save_checkpoint(root_ / "b", tensors, 2);
  int64_t last = 0;
  diff(a, b, {.progress = [&](std::string_view phase, int64_t done, int64_t total) {
         if (phase != "comparing") return;
         last = done;
         EXPECT_LE(done, total);
       }});
  EXPECT_EQ(last, 2 * 5 + 4 * 7 * 3);
}

TEST_F(Diff, WithAToleranceIsOfTheValuesThatExceedIt) {
  const at::Tensor a = at::tensor({1.0f, 2.0f}), b = at::tensor({1.25f, 2.5f});
  EXPECT_EQ(diff_of(a, b, {.tolerance = 0.25}).tensors[0].differing, 1);
  EXPECT_TRUE(diff_of(a, b, {.tolerance = 0.5}).empty());
}

TEST_F(Diff, OfTypesCountsUnlessAToleranceIsGiven) {
  const at::Tensor w = at::tensor({1.0f, 2.0f});
  Difference difference = diff_of(w, w.to(at::kBFloat16));
  ASSERT_EQ(difference.tensors.size(), 1u);
  EXPECT_TRUE(difference.tensors[0].compared);
  EXPECT_EQ(difference.tensors[0].differing, 0);
  EXPECT_THAT(diff_as_text(difference), HasSubstr("w: type float32 and bfloat16 the values are equal"));
  EXPECT_TRUE(diff_of(w, w.to(at::kBFloat16), {.tolerance = 0.0}).empty());
  EXPECT_FALSE(diff_of(w, w.to(at::kLong), {.tolerance = 0.0}).empty());
}

TEST_F(Diff, NamesWhatIsOnOneSideOnlyAndWhatHasAnotherShape) {
  fs::path a = root_.path() / "a.safetensors", b = root_.path() / "b.safetensors";
  write_safetensors(a, {{"w", at::ones({2, 3})}, {"x", at::ones({1})}, {"same", at::ones({4})}});
  write_safetensors(b, {{"w", at::ones({3, 2})}, {"y", at::ones({1})}, {"same", at::ones({4})}});
  Difference difference = diff(a, b, {});
  EXPECT_THAT(difference.only_in_a, ElementsAre("x"));
  EXPECT_THAT(difference.only_in_b, ElementsAre("y"));
  EXPECT_EQ(difference.equal_tensors, 1);
  EXPECT_THAT(diff_as_text(difference),
              AllOf(HasSubstr("only in the first: x\n"), HasSubstr("only in the second: y\n"),
                    HasSubstr("w: shape [2, 3] and [3, 2]\n"),
                    HasSubstr("different: 1 tensors are equal, 1 differ, 2 are on one side only\n")));
  auto json = diff_as_json(difference);
  EXPECT_FALSE(json["equal"]);
  EXPECT_TRUE(json["different"][0]["differing"].is_null());
  EXPECT_THAT(json["different"][0]["b"]["shape"], ElementsAre(3, 2));
}

TEST_F(Diff, OfDamagedFilesIsAnError) {
  fs::path a = save_checkpoint(root_.path() / "a", assorted_tensors(), 2);
  fs::path b = save_checkpoint(root_.path() / "b", assorted_tensors(), 2);
  flip_byte(b / "rank-00001.h5", 3000);
  EXPECT_EQ(error_of([&] { diff(a, b, {}); }).first, ErrorKind::kCheckpoint);
  EXPECT_EQ(error_of([&] { diff(a, root_.path() / "absent", {}); }).first, ErrorKind::kCheckpoint);
}

}  // namespace
}  // namespace fsdp::checkpoint
