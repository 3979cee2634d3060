#include "state/convert/sharded_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "state/checkpoint/load.h"
#include "state/convert/inspect.h"
#include "state/description/described_model.h"
#include "support/checkpoint_fixtures.h"

namespace fsdp::checkpoint {
namespace {

namespace fs = std::filesystem;
using namespace fsdp::testing;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// All tensors of a checkpoint, as a world of that size loads them.
NamedTensors load_all(const fs::path& folder, const NamedTensors& like, int world_size) {
  Manifest manifest = read_manifest(folder);
  NamedTensors loaded = zeros_like(like);
  for (int rank = 0; rank < world_size; ++rank) {
    load_slices(folder, manifest, slices_of(loaded, rank, world_size));
  }
  return loaded;
}

void expect_same(const NamedTensors& a, const NamedTensors& b) {
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bits(a[i].second, b[i].second)) << a[i].first;
}

class Reshard : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(Reshard, KeepsEveryBitAndTheTrainersState) {
  auto [from, to] = GetParam();
  TemporaryFolder root;
  const NamedTensors tensors = assorted_tensors();
  fs::path step = save_checkpoint(root.path() / "run", tensors, from);
  const fs::path output = root.path() / "new" / "step-00000100";
  ShardedResult result = reshard(step, output, to, {});
  EXPECT_EQ(result.files, to);
  EXPECT_THAT(find_damage(output), IsEmpty());
  Manifest before = read_manifest(step), after = read_manifest(output);
  EXPECT_EQ(after.world_size, to);
  EXPECT_EQ(after.files.size(), static_cast<size_t>(to));
  EXPECT_EQ(after.step, before.step);
  EXPECT_EQ(after.contents, Contents::kState);
  EXPECT_EQ(after.training, before.training);
  EXPECT_EQ(after.model, before.model);
  expect_same(load_all(output, tensors, 2), tensors);
}

INSTANTIATE_TEST_SUITE_P(Checkpoint, Reshard,
                         ::testing::Combine(::testing::Range(1, 5), ::testing::Range(1, 5)));

TEST(ShardedWriter, CutsTensorsThatAreLargerThanASlice) {
  TemporaryFolder root;
  NamedTensors tensors{{"model/w", at::arange(9'000'001, at::kInt).view(at::kFloat)}};
  fs::path step = save_checkpoint(root.path(), tensors, 1);
  std::vector<int64_t> seen;
  reshard(step, root.path() / "two", 2, [&](std::string_view phase, int64_t done, int64_t total) {
    if (phase == "writing") seen.push_back(done);
    EXPECT_LE(done, total);
  });
  EXPECT_GE(seen.size(), 4u);
  EXPECT_EQ(seen.back(), 36'000'004);
  expect_same(load_all(root.path() / "two", tensors, 3), tensors);
}

TEST(ShardedWriter, KeepsTheModelsFiles) {
  TemporaryFolder root;
  const fs::path step = save_checkpoint(root.path() / "run", assorted_tensors(), 2);
  fs::create_directory(root / "run" / kModelFilesName);
  for (const char* name : {"tokenizer.json", "generation_config.json"}) {
    std::ofstream(root / "run" / kModelFilesName / name) << name;
  }
  const fs::path output = root / "elsewhere";
  reshard(step, output, 3, {});
  EXPECT_EQ(model_files_in(output / kModelFilesName).size(), 2u);
  EXPECT_EQ(util::read_file(output / kModelFilesName / "tokenizer.json"), "tokenizer.json");
}

// Here a file loses what was written before it is closed, as on a full disk whose errors HDF5 does not
// report.
TEST(ShardedWriter, RefusesAShardThatTheDiskDidNotKeep) {
  TemporaryFolder root;
  const fs::path step = save_checkpoint(root.path(), assorted_tensors(), 2);
  const fs::path output = root / "o", staging = root / ".o.partial";
  int cuts = 0;
  auto [kind, text] = error_of([&] {
    reshard(step, output, 1, [&](std::string_view phase, int64_t done, int64_t total) {
      if (phase != "writing" || done != total) return;
      fs::resize_file(staging / "rank-00000.h5", 100);
      ++cuts;
    });
  });
  EXPECT_EQ(cuts, 1);
  EXPECT_EQ(kind, ErrorKind::kIo);
  EXPECT_THAT(text, HasSubstr("a shard cannot be read back right after it was written"));
  EXPECT_FALSE(fs::exists(output));
  EXPECT_FALSE(fs::exists(staging));
}

TEST(ShardedWriter, RefusesDamageAndWhatIsThere) {
  TemporaryFolder root;
  fs::path step = save_checkpoint(root.path(), assorted_tensors(), 2);
  EXPECT_EQ(error_of([&] { reshard(step, step, 3, {}); }).first, ErrorKind::kCheckpoint);
  for (int64_t world_size : {-1, 0, 100'001}) {
    EXPECT_EQ(error_of([&] { reshard(step, root.path() / "o", world_size, {}); }).first, ErrorKind::kUsage);
  }
  flip_byte(step / "rank-00001.h5", 3000);
  auto [kind, text] = error_of([&] { reshard(step, root.path() / "o", 3, {}); });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text, HasSubstr("rank-00001.h5 is damaged"));
  EXPECT_FALSE(fs::exists(root.path() / "o"));
  EXPECT_FALSE(fs::exists(root.path() / ".o.partial"));
}

}  // namespace
}  // namespace fsdp::checkpoint
