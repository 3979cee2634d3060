#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "state/checkpoint/load.h"
#include "state/checkpoint/save.h"
#include "state/convert/inspect.h"
#include "support/checkpoint_fixtures.h"

namespace fsdp::checkpoint {
namespace {

namespace fs = std::filesystem;
using namespace fsdp::testing;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

fs::path save_whole(const fs::path& root, const NamedTensors& tensors, int world_size) {
  comm::run_ranks_as_threads(world_size, [&](comm::Communicator& communicator) {
    save_full({.root = root, .step = 100, .layout = "flat", .training = {{"seed", 1}}, .model = {{"a", "b"}}},
              slices_of(tensors, communicator.rank(), world_size), communicator);
  });
  return root / "step-00000100";
}

class FullCheckpoint : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(FullCheckpoint, IsThatOfAWorldOfOne) {
  auto [saved_at, loaded_at] = GetParam();
  TemporaryFolder root;
  NamedTensors tensors = assorted_tensors();
  fs::path folder = save_whole(root.path(), tensors, saved_at);
  Manifest manifest = read_manifest(folder);
  EXPECT_EQ(manifest.world_size, 1);
  EXPECT_EQ(manifest.layout, "full");
  EXPECT_EQ(manifest.training["seed"], 1);
  EXPECT_EQ(manifest.model["a"], "b");
  ASSERT_EQ(manifest.files.size(), 1u);
  for (const auto& [name, entry] : manifest.tensors) EXPECT_LE(entry.ranges.size(), 1u) << name;
  EXPECT_THAT(find_damage(folder), IsEmpty());
  NamedTensors loaded = zeros_like(tensors);
  for (int rank = 0; rank < loaded_at; ++rank) {
    load_slices(folder, manifest, slices_of(loaded, rank, loaded_at), {.refuse_unexpected = true});
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(same_bits(tensors[i].second, loaded[i].second)) << tensors[i].first;
  }
}

INSTANTIATE_TEST_SUITE_P(SaveLoad, FullCheckpoint,
                         ::testing::Combine(::testing::Range(1, 5), ::testing::Values(1, 3)));

TEST(SaveFull, TakesManyRoundsForWhatIsLargerThanOne) {
  TemporaryFolder root;
  // 100 MB on three ranks: each tensor is cut by ranks and by rounds, at odd places.
  NamedTensors tensors{{"model/a", at::arange(9'000'001, at::kDouble)},
                       {"model/b", at::arange(7, at::kFloat)},
                       {"model/c", at::arange(14'000'003, at::kShort)}};
  fs::path folder = save_whole(root.path(), tensors, 3);
  NamedTensors loaded = zeros_like(tensors);
  load_slices(folder, read_manifest(folder), slices_of(loaded, 0, 1));
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(same_bits(tensors[i].second, loaded[i].second)) << tensors[i].first;
  }
}

TEST(SaveFull, FailsOnEveryRankAndLeavesNothing) {
  TemporaryFolder root;
  std::atomic<int> failures = 0;
  comm::run_ranks_as_threads(3, [&](comm::Communicator& communicator) {
    auto [kind, text] = error_of([&] {
      save_full({.root = root.path(), .step = 1, .layout = "flat", .training = {}, .model = {}},
                slices_of({{"model/w", at::ones({4})}}, 0, 1), communicator);
    });
    failures += kind == ErrorKind::kCheckpoint && text.find("model/w is stored twice") != std::string::npos;
  });
  EXPECT_EQ(failures, 3);
  EXPECT_FALSE(fs::exists(root.path() / "step-00000001"));
}

}  // namespace
}  // namespace fsdp::checkpoint
