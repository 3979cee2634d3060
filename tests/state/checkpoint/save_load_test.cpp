#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "state/checkpoint/load.h"
#include "state/checkpoint/save.h"
#include "state/convert/inspect.h"
#include "state/weights/shard_set.h"
#include "support/checkpoint_fixtures.h"

namespace fsdp::checkpoint {
namespace {

namespace fs = std::filesystem;
using namespace fsdp::testing;
using ::testing::HasSubstr;

class EveryPairOfWorlds : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(EveryPairOfWorlds, LoadsTheBitsThatWereSaved) {
  auto [saved_at, loaded_at] = GetParam();
  TemporaryFolder root;
  NamedTensors tensors = assorted_tensors();
  fs::path folder = save_checkpoint(root.path(), tensors, saved_at);
  Manifest manifest = read_manifest(folder);
  EXPECT_EQ(manifest.step, 100);
  EXPECT_EQ(manifest.world_size, saved_at);
  EXPECT_EQ(manifest.files.size(), static_cast<size_t>(saved_at));
  EXPECT_EQ(manifest.training["sample_position"], 4096);

  NamedTensors loaded = zeros_like(tensors);
  for (int rank = 0; rank < loaded_at; ++rank) {
    load_slices(folder, manifest, slices_of(loaded, rank, loaded_at), {.refuse_unexpected = true});
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(same_bits(tensors[i].second, loaded[i].second)) << tensors[i].first;
  }
}

INSTANTIATE_TEST_SUITE_P(SaveLoad, EveryPairOfWorlds,
                         ::testing::Combine(::testing::Range(1, 5), ::testing::Range(1, 5)));

TEST(SaveLoad, HandlesManyRangesOfATensorOnARank) {
  TemporaryFolder root;
  at::Tensor whole = at::arange(24, at::kFloat).view({4, 6});
  // Rank r of 2 holds columns [3r, 3r + 3): four ranges each, given in falling order.
  auto columns = [](const at::Tensor& tensor, int rank) {
    std::vector<shard::TensorSlice> slices;
    for (int64_t row = 3; row >= 0; --row) {
      int64_t begin = row * 6 + rank * 3;
      slices.push_back({"model/w", {4, 6}, {begin, begin + 3}, tensor.view({-1}).narrow(0, begin, 3)});
    }
    return slices;
  };
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    save_sharded({.root = root.path(), .step = 7, .layout = "per_parameter", .training = {}, .model = {}},
                 columns(whole, communicator.rank()), communicator);
  });
  fs::path folder = root.path() / "step-00000007";
  Manifest manifest = read_manifest(folder);
  EXPECT_EQ(expanded(manifest.tensors.at("model/w").ranges).size(), 8u);
  at::Tensor rows = at::zeros_like(whole), by_column = at::zeros_like(whole);
  load_slices(folder, manifest, slices_of({{"model/w", rows}}, 0, 1));
  EXPECT_TRUE(same_bits(whole, rows));
  for (int rank : {0, 1}) load_slices(folder, manifest, columns(by_column, rank));
  EXPECT_TRUE(same_bits(whole, by_column));
}

/// Rank `rank` of `world`: its chunk of the tensor cut after `rows`, or of the flattened tensor with one row.
std::vector<shard::TensorSlice> cut(const at::Tensor& tensor, int64_t rows, int rank, int world) {
  int64_t columns = tensor.numel() / rows, chunk = (columns + world - 1) / world;
  int64_t begin = std::min(rank * chunk, columns), end = std::min(begin + chunk, columns);
  at::Tensor part = tensor.view({rows, columns}).narrow(1, begin, end - begin);
  return {{"model/w", tensor.sizes().vec(), {begin, end, rows}, part.contiguous().view({-1})}};
}

TEST(SaveLoad, AnyCutGivesAnyOther) {
  at::Tensor whole = at::arange(7 * 5 * 6, at::kFloat).view({7, 5, 6});
  for (int64_t from_rows : {1, 7, 35}) {
    for (int from : {1, 2, 4}) {
      TemporaryFolder root;
      comm::run_ranks_as_threads(from, [&](comm::Communicator& communicator) {
        save_sharded({.root = root.path(), .step = 7, .layout = "per_parameter", .training = {}, .model = {}},
                     cut(whole, from_rows, communicator.rank(), from), communicator);
      });
      fs::path folder = root.path() / "step-00000007";
      Manifest manifest = read_manifest(folder);
      EXPECT_EQ(manifest.tensors.at("model/w").rows, from_rows);
      EXPECT_LE(expanded(manifest.tensors.at("model/w").ranges).size(), static_cast<size_t>(from));
      for (int64_t to_rows : {1, 7, 35}) {
        for (int to : {1, 3, 8}) {
          for (int rank = 0; rank < to; ++rank) {
            auto expected = cut(whole, to_rows, rank, to);
            auto loaded = cut(at::zeros_like(whole), to_rows, rank, to);
            load_slices(folder, manifest, loaded);
            EXPECT_TRUE(same_bits(loaded[0].data, expected[0].data))
                << from << " ranks, " << from_rows << " rows to rank " << rank << " of " << to << ", "
                << to_rows << " rows";
          }
        }
      }
    }
  }
}

TEST(SaveLoad, ATensorCutInColumnsIsOneReadFromAFileForAnotherNumberOfRanks) {
  TemporaryFolder root;
  at::Tensor whole = at::arange(600, at::kFloat).view({100, 6});
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    save_sharded({.root = root.path(), .step = 7, .layout = "per_parameter", .training = {}, .model = {}},
                 cut(whole, 100, communicator.rank(), 2), communicator);
  });
  fs::path folder = root.path() / "step-00000007";
  Manifest manifest = read_manifest(folder);
  ShardSet shards(folder, manifest);
  EXPECT_EQ(shards.plan("model/w", {2, 4, 100}, nullptr).size(), 2u);
  EXPECT_EQ(shards.plan("model/w", {0, 600}, nullptr).size(), 2u);
}

TEST(SaveLoad, RefusesRowsThatAreNotDimensions) {
  TemporaryFolder root;
  at::Tensor whole = at::arange(24, at::kFloat).view({4, 6});
  auto [kind, text] = error_of([&] {
    comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
      save_sharded({.root = root.path(), .step = 7, .layout = "per_parameter", .training = {}, .model = {}},
                   cut(whole, 3, communicator.rank(), 2), communicator);
    });
  });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text, HasSubstr("[4, 6] cannot have 3 rows"));
}

TEST(Save, NeverOverwritesACompleteCheckpoint) {
  TemporaryFolder root;
  NamedTensors tensors{{"model/w", at::ones({5})}};
  fs::path folder = save_checkpoint(root.path(), tensors, 2);
  auto [kind, text] = error_of([&] { save_checkpoint(root.path(), {{"model/w", at::zeros({5})}}, 2); });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text, HasSubstr("already a complete checkpoint"));
  NamedTensors loaded = zeros_like(tensors);
  load_slices(folder, read_manifest(folder), slices_of(loaded, 0, 1));
  EXPECT_TRUE(same_bits(loaded[0].second, tensors[0].second));
}

TEST(Save, RemovesWhatAnInterruptedSaveLeft) {
  TemporaryFolder root;
  fs::path folder = root.path() / step_folder_name(100);
  fs::create_directories(folder);
  for (const char* name : {".rank-00000.h5.tmp", "rank-00007.h5", "manifest.json.tmp-1"}) {
    std::ofstream(folder / name) << "left over";
  }
  save_checkpoint(root.path(), assorted_tensors(), 2);
  EXPECT_FALSE(fs::exists(folder / ".rank-00000.h5.tmp"));
  EXPECT_FALSE(fs::exists(folder / "rank-00007.h5"));
  EXPECT_EQ(incompleteness(folder), "");
}

TEST(Save, KeepsADamagedCheckpointAside) {
  TemporaryFolder root;
  fs::path folder = save_checkpoint(root.path(), assorted_tensors(), 2);
  fs::remove(folder / "rank-00001.h5");
  save_checkpoint(root.path(), assorted_tensors(), 1);
  EXPECT_EQ(incompleteness(folder), "");
  EXPECT_TRUE(fs::exists(root.path() / "step-00000100.damaged-1" / "rank-00000.h5"));
}

TEST(Save, FailsOnEveryRankWhenOneRankHoldsTooMuch) {
  TemporaryFolder root;
  std::atomic<int> refused = 0;
  comm::run_ranks_as_threads(3, [&](comm::Communicator& communicator) {
    auto [kind, text] = error_of([&] {
      // Every rank gives the whole tensor, so its elements are there three times.
      save_sharded({.root = root.path(), .step = 1, .layout = "flat", .training = {}, .model = {}},
                   slices_of({{"model/w", at::ones({4})}}, 0, 1), communicator);
    });
    if (kind == ErrorKind::kCheckpoint && text.find("model/w is stored twice") != std::string::npos)
      ++refused;
  });
  EXPECT_EQ(refused, 3);
  EXPECT_FALSE(fs::exists(root.path() / "step-00000001"));
}

TEST(Save, NamesTheTensorThatNobodyHoldsWhole) {
  TemporaryFolder root;
  auto [kind, text] = error_of([&] {
    comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
      save_sharded({.root = root.path(), .step = 1, .layout = "flat", .training = {}, .model = {}},
                   slices_of({{"model/w", at::ones({9})}}, communicator.rank(), 3), communicator);
    });
  });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text, HasSubstr("model/w lacks elements 6 to 9"));
}

TEST(Save, ReportsAPlaceWhereNoFolderCanBeMade) {
  TemporaryFolder root;
  std::ofstream(root.path() / "file") << "in the way";
  auto [kind, text] = error_of([&] { save_checkpoint(root.path() / "file", assorted_tensors(), 2); });
  EXPECT_EQ(kind, ErrorKind::kIo);
  EXPECT_THAT(text, HasSubstr("file"));
}

TEST(Save, NeedsAFolderThatAllRanksShare) {
  TemporaryFolder root;
  // Rank 1 writes to a disk of its own, which has the folder from an earlier run.
  const fs::path shared = root / "shared", own = root / "own";
  fs::create_directories(own / step_folder_name(1));
  auto [kind, text] = error_of([&] {
    comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
      const int rank = communicator.rank();
      save_sharded({.root = rank == 0 ? shared : own, .step = 1, .layout = "flat"},
                   slices_of({{"model/w", at::ones({4})}}, rank, 2), communicator);
    });
  });
  EXPECT_EQ(kind, ErrorKind::kIo);
  EXPECT_THAT(text, HasSubstr("rank 0 does not see the file " +
                              (shared / step_folder_name(1) / shard_file_name(1, 2)).string()));
  EXPECT_THAT(text, HasSubstr("run.output_dir must be on storage that all nodes share"));
  EXPECT_FALSE(fs::exists(shared / step_folder_name(1)));
}

TEST(Save, TellsWhyOlderCheckpointsWereNotRemoved) {
  TemporaryFolder root;
  save_checkpoint(root.path(), {{"model/w", at::ones({5})}}, 1, 1);
  // The removal of step 0 was interrupted; it cannot be finished while the process may open fewer files than
  // this folder has levels, not even by root.
  constexpr rlim_t kFewFiles = 100;
  fs::path deep = root / ".deleting-step-00000000";
  for (rlim_t level = 0; level < kFewFiles; ++level) deep /= "d";
  fs::create_directories(deep);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{kFewFiles, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  SavedCheckpoint saved;
  comm::run_ranks_as_threads(1, [&](comm::Communicator& communicator) {
    saved = save_sharded({.root = root.path(), .step = 2, .layout = "flat", .retention = {.keep_last = 1}},
                         slices_of({{"model/w", at::ones({5})}}, 0, 1), communicator);
  });
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_THAT(saved.removal_failure,
              HasSubstr("cannot remove " + (root / ".deleting-step-00000000").string()));
  EXPECT_THAT(saved.removed, ::testing::IsEmpty());
  EXPECT_EQ(incompleteness(saved.folder), "") << "the new checkpoint is complete all the same";
  EXPECT_TRUE(fs::exists(root / "step-00000001"));
}

/// A file system of one MiB, where this process may mount one.
class SmallDisk : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directory(disk_);
    if (::mount("none", disk_.c_str(), "tmpfs", 0, "size=1m") != 0) {
      GTEST_SKIP() << "cannot mount a small tmpfs here: " << std::strerror(errno);
    }
    mounted_ = true;
  }
  void TearDown() override {
    if (mounted_) {
      EXPECT_EQ(::umount2(disk_.c_str(), MNT_DETACH), 0);
    }
  }
  TemporaryFolder folder_;
  fs::path disk_ = folder_.path() / "disk";
  bool mounted_ = false;
};

TEST_F(SmallDisk, AFullDiskIsAnIoErrorAndLeavesTheOlderCheckpointWhole) {
  NamedTensors small{{"model/w", at::ones({40'000})}};
  fs::path older = save_checkpoint(disk_, small, 2, 1);
  // From far too much down to what just fits: the disk fills in the middle of a tensor, between tensors, and
  // where HDF5 writes its metadata.
  int refused = 0, saved = 0;
  for (int64_t numel = 240'000; numel >= 200'000; numel -= 1000) {
    NamedTensors large{
        {"model/a", at::ones({7})}, {"model/w", at::ones({numel})}, {"model/z", at::ones({9})}};
    fs::path newer = disk_ / step_folder_name(2);
    auto [kind, text] = error_of([&] { save_checkpoint(disk_, large, 2, 2); });
    if (kind == ErrorKind::kIo) {
      ++refused;
      EXPECT_THAT(text, HasSubstr("No space left on device"));
      EXPECT_THAT(text, HasSubstr(newer.string()));
      EXPECT_FALSE(fs::exists(newer)) << "what a failed save wrote should be given back";
    } else {
      ++saved;
      ASSERT_EQ(text, "nothing was thrown");
      EXPECT_THAT(find_damage(newer), ::testing::IsEmpty());
      fs::remove_all(newer);
    }
  }
  EXPECT_GT(refused, 5);
  EXPECT_GT(saved, 5);
  NamedTensors loaded = zeros_like(small);
  load_slices(older, read_manifest(older), slices_of(loaded, 0, 1));
  EXPECT_TRUE(same_bits(loaded[0].second, small[0].second));
}

TEST_F(SmallDisk, AReadOnlyDiskIsAnIoError) {
  ASSERT_EQ(::mount("none", disk_.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);
  auto [kind, text] = error_of([&] { save_checkpoint(disk_, assorted_tensors(), 2); });
  EXPECT_EQ(kind, ErrorKind::kIo);
  EXPECT_THAT(text, HasSubstr("Read-only file system"));
}

TEST(Load, ListsEverythingThatDoesNotFitAtOnce) {
  TemporaryFolder root;
  fs::path folder = save_checkpoint(root.path(), assorted_tensors(), 2);
  NamedTensors wanted{{"model/embed_tokens.weight", at::zeros({7, 13})},
                      {"model/scale", at::zeros({}, at::kFloat)},
                      {"model/new.weight", at::zeros({3})},
                      {"optimizer/other", at::zeros({3})}};
  Manifest manifest = read_manifest(folder);
  auto [kind, text] =
      error_of([&] { load_slices(folder, manifest, slices_of(wanted, 0, 1), {.refuse_unexpected = true}); });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text, HasSubstr("missing: model/new.weight, optimizer/other"));
  EXPECT_THAT(text, HasSubstr("unexpected: model/layers.0.k.weight, model/layers.0.q.weight, "
                              "model/none, model/two, optimizer/counts, "
                              "optimizer/exp_avg/embed_tokens.weight, optimizer/mask, optimizer/step;"));
  EXPECT_THAT(text,
              HasSubstr("model/embed_tokens.weight (float32 [13, 7] in the checkpoint, float32 [7, 13]"));
  EXPECT_THAT(text, HasSubstr("model/scale (float64 [] in the checkpoint, float32 [] here)"));
}

TEST(Load, ReadsAPartOfTheTensorsUnlessAskedToBeStrict) {
  TemporaryFolder root;
  NamedTensors tensors = assorted_tensors();
  fs::path folder = save_checkpoint(root.path(), tensors, 3);
  NamedTensors one{{"model/two", at::zeros({2})}};
  load_slices(folder, read_manifest(folder), slices_of(one, 0, 1));
  EXPECT_TRUE(same_bits(one[0].second, tensors[4].second));
}

TEST(ShardSet, ReadsAFileOnceToVerifyIt) {
  testing::TemporaryFolder root;
  const auto folder = testing::save_checkpoint(root.path(), testing::assorted_tensors(), 2);
  const Manifest manifest = read_manifest(folder);
  ShardSet shards(folder, manifest);
  int64_t hashed = 0;
  for (int i = 0; i < 2; ++i) shards.verify(1, [&](int64_t bytes) { hashed += bytes; });
  EXPECT_EQ(hashed, manifest.files[1].bytes);
  shards.verify(0, [&](int64_t bytes) { hashed += bytes; });
  EXPECT_EQ(hashed, manifest.files[0].bytes + manifest.files[1].bytes);
}

TEST(Load, ConvertsFloatsOfOtherTypesWhereToldSo) {
  TemporaryFolder root;
  const at::Tensor matrix = at::randn({7, 12}), counts = at::arange(5);
  const fs::path folder =
      save_checkpoint(root.path(), {{"model/counts", counts}, {"model/w", matrix}, {"state/w", matrix}}, 3);
  const Manifest manifest = read_manifest(folder);
  const LoadOptions options{.may_be_converted = {"model/*"}};
  for (at::ScalarType type : {at::kBFloat16, at::kHalf, at::kDouble}) {
    const auto refusal = [&](const NamedTensors& wanted) {
      return error_of([&] { load_slices(folder, manifest, slices_of(wanted, 0, 1), options); }).second;
    };
    EXPECT_THAT(refusal({{"state/w", at::zeros({7, 12}, type)}}), HasSubstr("state/w (float32"));
    EXPECT_THAT(refusal({{"model/counts", at::zeros({5}, type)}}), HasSubstr("model/counts (int64"));
    const NamedTensors loaded = {{"model/w", at::zeros({7, 12}, type)}, {"state/w", at::zeros({7, 12})}};
    for (int rank : {0, 1}) load_slices(folder, manifest, slices_of(loaded, rank, 2), options);
    EXPECT_TRUE(at::equal(loaded[0].second, matrix.to(type))) << "rounded to nearest";
    EXPECT_TRUE(same_bits(loaded[1].second, matrix));
    const at::Tensor right = at::zeros({7, 5}, type);  // the last columns
    load_slices(folder, manifest, {{"model/w", {7, 12}, {7, 12, 7}, right.view(-1)}}, options);
    EXPECT_TRUE(at::equal(right, matrix.slice(1, 7, 12).to(type)));
  }
}

TEST(Load, TouchesOnlyTheFilesThatItNeeds) {
  TemporaryFolder root;
  NamedTensors tensors = assorted_tensors();
  fs::path folder = save_checkpoint(root.path(), tensors, 2);
  Manifest manifest = read_manifest(folder);
  fs::remove(folder / "rank-00001.h5");
  NamedTensors loaded = zeros_like(tensors);
  load_slices(folder, manifest, slices_of(loaded, 0, 2));
  auto [kind, text] = error_of([&] { load_slices(folder, manifest, slices_of(loaded, 1, 2)); });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text, HasSubstr("rank-00001.h5: No such file"));
}

}  // namespace
}  // namespace fsdp::checkpoint
