#include "data/loading/prefetch.h"

#include <filesystem>

#include "data/token_fixtures.h"

namespace fsdp::data {
namespace {

using fsdp::testing::TemporaryFolder;

DataOptions options_for(const std::string& path) {
  DataOptions options;
  options.train = {path};
  options.sequence_length = 4;
  options.micro_batch_size = 2;
  return options;
}

TEST(PrefetchingBatches, GivesWhatItsSourceGivesInAnyOrder) {
  TemporaryFolder folder;
  const TrainLoader loader(options_for(write_tokens(folder, "a", counting(201))), 256, 1, {0, 2, 3});
  for (int64_t depth : {0, 1, 3, 50}) {
    const PrefetchingBatches ahead(loader, {.depth = depth});
    // Whole steps, steps of fewer micro-batches, a jump back as after a restore, the same again.
    for (auto [first, micro_batches] :
         {std::pair<int64_t, int64_t>{0, 3}, {12, 3}, {24, 1}, {28, 2}, {0, 3}, {0, 1}}) {
      for (int64_t micro = 0; micro < micro_batches; ++micro) {
        const Batch expected = loader.batch(first, micro), found = ahead.batch(first, micro);
        EXPECT_TRUE(found.inputs.equal(expected.inputs)) << first << " " << micro;
        EXPECT_TRUE(found.targets.equal(expected.targets));
        EXPECT_EQ(found.first_row, expected.first_row);
      }
    }
  }
}

TEST(PrefetchingBatches, EndsWithoutHavingBeenAsked) {
  TemporaryFolder folder;
  const TrainLoader loader(options_for(write_tokens(folder, "a", counting(201))), 256, 1, {});
  for (int i = 0; i < 20; ++i) {
    const PrefetchingBatches idle(loader, {.depth = 2}), busy(loader, {.depth = 4});
    busy.batch(0, 0);
  }
}

TEST(PrefetchingBatches, ThrowsAnErrorWhereItBelongs) {
  TemporaryFolder folder;
  DataOptions options = options_for(write_tokens(folder, "a", counting(201)));
  options.shuffle = false;
  const TrainLoader loader(options, 256, 1, {});
  const PrefetchingBatches ahead(loader, {.depth = 1});
  ahead.batch(0, 0);
  std::filesystem::resize_file(folder / "a", 2 * 60);  // tokens 60 to 200 are gone
  for (int64_t first = 2; first < 12; first += 2) ahead.batch(first, 0);
  for (int again = 0; again < 2; ++again) {
    try {
      ahead.batch(40, 0);
      FAIL();
    } catch (const util::Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData);
    }
  }
  EXPECT_TRUE(ahead.batch(0, 0).inputs.equal(loader.batch(0, 0).inputs));
}

}  // namespace
}  // namespace fsdp::data
