#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>

#include "state/checkpoint/load.h"
#include "state/checkpoint/save.h"
#include "state/checkpoint/state_slices.h"
#include "state/manifest/run_identity.h"
#include "support/checkpoint_fixtures.h"
#include "support/forwarding_communicator.h"

namespace fsdp::checkpoint {
namespace {

namespace fs = std::filesystem;
using namespace fsdp::testing;
using ::testing::HasSubstr;

constexpr const char* kRun = "0123456789abcdef";

SaveRequest request_in(const fs::path& root, int64_t step) {
  return {.root = root, .step = step, .layout = "flat", .training = {{"run", kRun}}, .model = {}};
}

TEST(SaveUnderWay, BecomesCompleteWhileItsCallerGoesOn) {
  TemporaryFolder root;
  NamedTensors tensors = assorted_tensors();
  comm::run_ranks_as_threads(3, [&](comm::Communicator& communicator) {
    SaveUnderWay save(request_in(root.path(), 5), slices_of(tensors, communicator.rank(), 3), communicator);
    int turns = 0;
    for (; !save.advance(); ++turns) communicator.barrier({.unit = "a step"});
    EXPECT_GE(turns, 2) << "its parts follow each other at step boundaries";
    EXPECT_EQ(incompleteness(root.path() / "step-00000005"), "");
    EXPECT_EQ(save.finish().folder, root.path() / "step-00000005");
    EXPECT_TRUE(save.advance());
  });
  NamedTensors loaded = zeros_like(tensors);
  fs::path folder = root.path() / "step-00000005";
  load_slices(folder, read_manifest(folder), slices_of(loaded, 0, 1), {.refuse_unexpected = true});
  for (size_t i = 0; i < tensors.size(); ++i) EXPECT_TRUE(same_bits(tensors[i].second, loaded[i].second));
}

TEST(SaveUnderWay, ThatIsGivenUpIsNoCheckpoint) {
  TemporaryFolder root;
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    SaveUnderWay(request_in(root.path(), 5), slices_of(assorted_tensors(), communicator.rank(), 2),
                 communicator);
  });
  EXPECT_TRUE(find_checkpoints(root.path()).complete.empty());
  EXPECT_EQ(remove_leftovers(root.path(), kRun).removed,
            std::vector<fs::path>{root.path() / "step-00000005"});
}

/// A group on a device that has given up an earlier collective, as after an abort of NCCL.
class GivenUp final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  void check() const override { fail(ErrorKind::kTimeout, "reduce_scatter of layer (backward) failed"); }
};

TEST(SaveUnderWay, HasNothingOfAStateThatAFailedCollectiveHasSpoilt) {
  TemporaryFolder root;
  comm::run_ranks_as_threads(2, [&](comm::Communicator& ranks) {
    GivenUp communicator(ranks);
    const SaveRequest request = request_in(root.path(), 5);
    const auto slices = slices_of(assorted_tensors(), ranks.rank(), 2);
    EXPECT_THROW(save_sharded(request, slices, communicator), util::Error);
    EXPECT_THROW(save_full(request, slices, communicator), util::Error);
    EXPECT_THROW(SaveUnderWay(request, slices, communicator), util::Error);
  });
  EXPECT_TRUE(fs::is_empty(root.path()));
}

TEST(SaveUnderWay, ThatIsCompleteHasNoMarkOfItsRun) {
  TemporaryFolder root;
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    save_sharded(request_in(root.path(), 5), slices_of(assorted_tensors(), communicator.rank(), 2),
                 communicator);
  });
  EXPECT_EQ(run_that_fills(root / "step-00000005"), std::nullopt);
  EXPECT_EQ(find_checkpoints(root.path()).complete.front().run, kRun);
  fs::remove(root / "step-00000005/manifest.json");
  EXPECT_EQ(remove_leftovers(root.path(), kRun).set_aside,
            std::vector<fs::path>{root / "step-00000005.incomplete-1"});
}

TEST(SaveUnderWay, SetsAsideAStepThatIsNotKnownToBeItsOwnRemains) {
  TemporaryFolder root;
  for (const char* run : {kRun, "fedcba9876543210"}) {
    fs::create_directory(root / "step-00000005");
    std::ofstream(root / "step-00000005/rank-00000.h5") << "half";
    mark_unfinished(root / "step-00000005", run);
    comm::run_ranks_as_threads(1, [&](comm::Communicator& communicator) {
      save_sharded(request_in(root.path(), 5), slices_of(assorted_tensors(), 0, 1), communicator);
    });
    EXPECT_EQ(fs::exists(root / "step-00000005.incomplete-1"), run != std::string(kRun));
    fs::remove_all(root / "step-00000005");
  }
}

TEST(SaveUnderWay, RemovesOlderCheckpointsOnceItIsComplete) {
  TemporaryFolder root;
  for (int64_t step : {1, 2, 3, 4}) save_checkpoint(root.path(), {{"model/w", at::ones({4})}}, 1, step);
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    SaveRequest request = request_in(root.path(), 5);
    request.retention = {.keep_last = 2, .keep_every = 3};
    SavedCheckpoint saved =
        save_sharded(request, slices_of({{"model/w", at::ones({4})}}, communicator.rank(), 2), communicator);
    if (communicator.rank() == 0) {
      EXPECT_EQ(saved.removed, (std::vector<fs::path>{root / "step-00000001", root / "step-00000002"}));
    }
  });
  EXPECT_EQ(find_checkpoints(root.path()).complete.size(), 3u);
}

TEST(SaveUnderWay, FailsOnEveryRankAndGivesItsSpaceBack) {
  TemporaryFolder root;
  std::atomic<int> failures = 0;
  comm::run_ranks_as_threads(3, [&](comm::Communicator& communicator) {
    // Rank 1 holds what rank 0 holds too, which shows when the manifest is put together.
    SaveUnderWay save(request_in(root.path(), 5),
                      slices_of({{"model/w", at::ones({9})}}, communicator.rank() / 2, 2), communicator);
    auto [kind, text] = error_of([&] {
      while (!save.advance()) {
      }
    });
    EXPECT_THAT(text, HasSubstr("model/w is stored twice"));
    failures += kind == ErrorKind::kCheckpoint;
  });
  EXPECT_EQ(failures, 3);
  EXPECT_FALSE(fs::exists(root.path() / "step-00000005"));
}

TEST(HostCopies, KeepTheirValuesAndTheirMemory) {
  NamedTensors tensors = assorted_tensors(), before;
  for (const auto& [name, tensor] : tensors) before.emplace_back(name, tensor.clone());
  HostCopies copies;
  copies.prepare(slices_of(tensors, 1, 2));
  const int64_t bytes = copies.bytes();
  std::vector<shard::TensorSlice> first = copies.take(slices_of(tensors, 1, 2));
  for (auto& [name, tensor] : tensors) tensor.zero_();
  std::vector<shard::TensorSlice> expected = slices_of(before, 1, 2);
  ASSERT_EQ(first.size(), expected.size());
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i].name, expected[i].name);
    EXPECT_TRUE(same_bits(first[i].data, expected[i].data)) << first[i].name;
  }
  std::vector<shard::TensorSlice> second = copies.take(slices_of(tensors, 1, 2));
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(second[i].data.const_data_ptr(), first[i].data.const_data_ptr());
  }
  EXPECT_EQ(copies.bytes(), bytes);
  copies.take(slices_of(tensors, 0, 1));
  EXPECT_GT(copies.bytes(), bytes) << "other slices need another buffer";
}

}  // namespace
}  // namespace fsdp::checkpoint
