// Checkpoints of worlds of any size, by their metadata: what ranks hold is said by rule.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "state/checkpoint/load.h"
#include "state/checkpoint/save.h"
#include "state/convert/inspect.h"
#include "state/convert/sharded_writer.h"
#include "state/weights/shard_set.h"
#include "support/checkpoint_contents.h"
#include "support/checkpoint_fixtures.h"
#include "support/forwarding_communicator.h"
#include "support/synthetic_checkpoint.h"

namespace fsdp::checkpoint {
namespace {

namespace fs = std::filesystem;
using namespace fsdp::testing;
using ::testing::HasSubstr;

using Single = std::tuple<size_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t>;

std::set<Single> singles(const TensorEntry& entry) {
  std::set<Single> all;
  for (const RangeEntry& range : expanded(entry.ranges)) {
    const util::Rectangle& part = range.part;
    all.emplace(range.file, part.begin, part.end, part.row_begin, part.row_end, range.offset, range.held);
  }
  return all;
}

size_t most_ranges(const Manifest& manifest) {
  size_t most = 0;
  for (const auto& [name, entry] : manifest.tensors) most = std::max(most, entry.ranges.size());
  return most;
}

struct World {
  const char* name;
  SyntheticCheckpoint checkpoint;
  size_t most_ranges;  ///< of a tensor
};

class EveryWorld : public ::testing::TestWithParam<World> {};

TEST_P(EveryWorld, IsSaidByAFewRulesFromWhichTheSameRangesFollow) {
  const SyntheticCheckpoint& checkpoint = GetParam().checkpoint;
  Manifest told = checkpoint.manifest(checkpoint.report_of_all());
  Manifest listed = checkpoint.explicit_manifest();
  complete_manifest(told, "the report");
  complete_manifest(listed, "the list");
  const Manifest read = parse_manifest(manifest_text(told), "the manifest");
  ASSERT_EQ(read.tensors.size(), listed.tensors.size());
  ASSERT_EQ(read.files.size(), static_cast<size_t>(checkpoint.world));
  for (const auto& [name, entry] : listed.tensors) {
    ASSERT_EQ(singles(read.tensors.at(name)), singles(entry)) << name;
    ASSERT_EQ(singles(told.tensors.at(name)), singles(entry)) << name;
  }
  // A manifest of a release that lists all ranges is read as the same.
  nlohmann::json text = nlohmann::json::parse(manifest_text(told));
  for (const auto& [name, entry] : listed.tensors) {
    auto& ranges = text["tensors"][name]["ranges"] = nlohmann::json::array();
    for (const auto& [file, begin, end, row_begin, row_end, offset, held] : singles(entry)) {
      ranges.push_back({{"file", told.files[file].name}, {"begin", begin}, {"end", end}});
      if (row_end - row_begin == entry.rows) continue;
      ranges.back().update({{"row_begin", row_begin}, {"row_end", row_end}});
    }
  }
  text["version"] = 3;
  text["seal"] = seal_of(text);
  EXPECT_EQ(manifest_text(parse_manifest(text.dump(), "the older manifest")), manifest_text(read));
  EXPECT_LE(most_ranges(read), GetParam().most_ranges);
  for (size_t file : {size_t{0}, size_t{5}, read.files.size() - 1}) {
    EXPECT_EQ(describe_file(read, file), describe_file(listed, file));
    EXPECT_EQ(read.files[file].bytes, 4096 + static_cast<int64_t>(file));
  }
}

const World kWorlds[] = {
    {"flat_16", {.world = 16}, 3},
    {"flat_17", {.world = 17}, 3},
    {"flat_64", {.world = 64}, 3},
    {"flat_1000", {.world = 1000}, 3},
    {"flat_over_small_parameters", {.world = 300, .hidden = 4, .intermediate = 8}, 3},
    {"hybrid", {.world = 96, .replicas = 4}, 7},
    {"hybrid_of_three_quarters", {.world = 8 * 48, .replicas = 8}, 7},
    {"no_shard", {.world = 32, .replicas = 32}, 2},
    {"per_parameter", {.world = 48, .layout = "per_parameter"}, 2},
    {"per_parameter_in_columns", {.world = 40, .layout = "per_parameter", .dimension = 1}, 2},
    {"per_parameter_of_more_ranks_than_rows", {.world = 500, .layout = "per_parameter"}, 2},
    {"tensor_parallel", {.world = 128, .layout = "per_parameter", .columns = 8}, 2},
    {"tensor_parallel_by_two", {.world = 6 * 17, .layout = "per_parameter", .columns = 2}, 2},
    // Without a rule: rows begin and end inside of shards.
    {"flat_of_tensor_parallel", {.world = 64, .columns = 4}, 200},
};
INSTANTIATE_TEST_SUITE_P(LargeWorld, EveryWorld, ::testing::ValuesIn(kWorlds),
                         [](const auto& info) { return std::string(info.param.name); });

/// 16,384 ranks, 128 units of 9 tensors with two states each.
SyntheticCheckpoint large() { return {.world = 16384, .units = 128, .hidden = 8192, .intermediate = 28672}; }

/// complete and read back; the ranges of all units and states are those of one.
Manifest large_manifest(std::string* text) {
  const SyntheticCheckpoint one{.world = 16384, .units = 1, .hidden = 8192, .intermediate = 28672};
  Manifest manifest = one.manifest(one.report_of_all()), all = manifest;
  all.tensors.clear();
  for (const auto& parameter : large().parameters()) {
    const TensorEntry& entry = manifest.tensors.at("model/layers.0." + parameter.name + ".weight");
    large().for_each_name(parameter.name, [&](const std::string& name) { all.tensors.emplace(name, entry); });
  }
  complete_manifest(all, "the report");
  *text = manifest_text(all);
  return parse_manifest(*text, "the manifest");
}

TEST(LargeWorld, OfSixMillionRangesHasASmallManifestAndPlansForFewerRanks) {
  std::string text;
  const Manifest manifest = large_manifest(&text);
  EXPECT_LE(text.size(), 16u << 20);
  EXPECT_EQ(nlohmann::json::parse(text)["version"], 4);
  EXPECT_EQ(manifest.files[1025].name, "ranks-01024/rank-01025.h5");
  int64_t ranges = 0;
  for (const auto& [name, entry] : manifest.tensors) {
    for (const RangeEntry& range : entry.ranges) ranges += range.count();
  }
  EXPECT_GT(ranges, 6'000'000);

  // Every element that a rank of 4,096 needs comes from the right place of the right file.
  const auto from = large().layout_of_unit();
  SyntheticCheckpoint fewer = large();
  fewer.world = 4096;
  const auto to = fewer.layout_of_unit();
  ShardSet shards("", manifest);
  for (int rank : {0, 1, 1234, 4095}) {
    for (size_t p = 0; p < to->parameters().size(); ++p) {
      const util::Rectangle wanted = to->local_range(p, rank).columns;
      if (wanted.numel() == 0) continue;
      const std::string name = "optimizer/exp_avg/layers.127." + to->parameters()[p].name + ".weight";
      int64_t at = wanted.begin;
      for (const ShardRead& read : shards.plan(name, wanted, nullptr)) {
        const util::Rectangle held = from->local_range(p, static_cast<int>(read.file)).columns;
        EXPECT_EQ(read.held, held.numel());
        EXPECT_EQ(held.begin + read.blocks.offset, at);
        EXPECT_EQ(static_cast<char*>(read.out) - static_cast<char*>(nullptr), 4 * (at - wanted.begin));
        at += read.blocks.count;
      }
      EXPECT_EQ(at, wanted.end) << name << " of rank " << rank;
    }
  }
}

/// Writes down how many messages the collectives of a rank take: an all-gather one from each other rank,
/// others as many as a tree has levels.
class MessageCounter final : public ForwardingCommunicator {
 public:
  struct Counts {
    int64_t gathered = 0, largest_group = 0, most_bytes_elsewhere = 0;
  };
  MessageCounter(std::shared_ptr<comm::Communicator> inner, Counts& counts)
      : ForwardingCommunicator(std::move(inner)), counts_(counts) {}

 protected:
  std::unique_ptr<comm::Work> collective(const comm::Collective& call, const comm::CallSite& site) override {
    if (call.kind == comm::Collective::Kind::kAllGather) {
      counts_.gathered += world_size() - 1;
      counts_.largest_group = std::max<int64_t>(counts_.largest_group, world_size());
    } else {
      counts_.most_bytes_elsewhere =
          std::max(counts_.most_bytes_elsewhere, static_cast<int64_t>(call.payload().nbytes()));
    }
    return call.issue(inner(), site);
  }
  std::shared_ptr<comm::Communicator> around(std::shared_ptr<comm::Communicator> group) override {
    return std::make_shared<MessageCounter>(std::move(group), counts_);
  }

 private:
  Counts& counts_;
};

TEST(LargeWorld, ASaveTakesAsManyMessagesARankAsATreeHasLevels) {
  const NamedTensors tensors = assorted_tensors();
  for (int world : {4, 8, 16, 20, 32, 64}) {
    TemporaryFolder root;
    std::mutex mutex;
    MessageCounter::Counts most;
    comm::run_ranks_as_threads(world, [&](comm::Communicator& communicator) {
      MessageCounter::Counts counts;
      const auto counter = std::make_shared<MessageCounter>(borrowed(communicator), counts);
      save_sharded({.root = root.path(), .step = 1, .layout = "flat"},
                   slices_of(tensors, communicator.rank(), world), *counter);
      const std::lock_guard lock(mutex);
      most.gathered = std::max(most.gathered, counts.gathered);
      most.largest_group = std::max(most.largest_group, counts.largest_group);
      most.most_bytes_elsewhere = std::max(most.most_bytes_elsewhere, counts.most_bytes_elsewhere);
    });
    const int levels = world <= 16 ? 1 : 2;
    // Lengths, then texts.
    EXPECT_LE(most.gathered, 2 * levels * (comm::RankTree::kFanIn - 1)) << world << " ranks";
    EXPECT_LE(most.largest_group, comm::RankTree::kFanIn);
    EXPECT_EQ(most.most_bytes_elsewhere, 8) << "what all ranks exchange is a number";
    EXPECT_THAT(find_damage(root.path() / step_folder_name(1)), ::testing::IsEmpty());
    NamedTensors loaded = zeros_like(tensors);
    const fs::path folder = root.path() / step_folder_name(1);
    load_slices(folder, read_manifest(folder), slices_of(loaded, 0, 1), {.refuse_unexpected = true});
    for (size_t i = 0; i < tensors.size(); ++i) EXPECT_TRUE(same_bits(tensors[i].second, loaded[i].second));
  }
}

TEST(LargeWorld, FailsOnEveryRankWhenRanksOfDifferentGroupsDisagree) {
  TemporaryFolder root;
  std::atomic<int> refused = 0;
  comm::run_ranks_as_threads(34, [&](comm::Communicator& communicator) {
    const int rank = communicator.rank();
    NamedTensors tensors{{"model/w", at::ones({340})}};
    if (rank == 33) tensors[0].second = at::ones({340}).to(at::kDouble);
    const auto [kind, text] = error_of([&] {
      save_sharded({.root = root.path(), .step = 1, .layout = "flat"}, slices_of(tensors, rank, 34),
                   communicator);
    });
    if (kind == ErrorKind::kCheckpoint &&
        text.find("model/w: rank 33 has float64 [340] in 1 rows, others have float32") != std::string::npos) {
      ++refused;
    }
  });
  EXPECT_EQ(refused, 34);
  EXPECT_FALSE(fs::exists(root.path() / step_folder_name(1)));
}

TEST(LargeWorld, SpreadsItsShardsOverFolders) {
  TemporaryFolder root;
  const NamedTensors tensors = assorted_tensors();
  const fs::path before = save_checkpoint(root.path(), tensors, 2), many = root / "many", few = root / "few";
  reshard(before, many, 1030, {});
  EXPECT_EQ(std::distance(fs::directory_iterator(many), {}), 3) << "two folders and the manifest";
  EXPECT_TRUE(fs::exists(many / "ranks-01024/rank-01029.h5"));
  EXPECT_THAT(find_damage(many), ::testing::IsEmpty());
  expect_equal_checkpoints(before, many);
  reshard(many, few, 3, {});
  EXPECT_TRUE(fs::exists(few / "rank-00002.h5"));
  expect_equal_checkpoints(before, few);
}

TEST(ShardFile, ThatBelongsToAnotherCheckpointIsFoundByWhatItSaysOfItself) {
  TemporaryFolder root;
  const fs::path folder = save_checkpoint(root.path(), assorted_tensors(), 2, 1);
  const fs::path other = save_checkpoint(root.path(), assorted_tensors(), 2, 2);
  EXPECT_THAT(find_damage(folder), ::testing::IsEmpty());
  fs::copy_file(other / "rank-00001.h5", folder / "rank-00001.h5", fs::copy_options::overwrite_existing);
  bless_file(folder, "rank-00001.h5");
  const auto damage = find_damage(folder);
  ASSERT_EQ(damage.size(), 1u);
  EXPECT_THAT(damage[0], HasSubstr("rank-00001.h5 does not say of itself what the manifest says of it"));
}

struct RuleLie {
  const char* name;
  void (*tell)(nlohmann::json& range);
  const char* answer;
};

class LyingRule : public ::testing::TestWithParam<RuleLie> {};

TEST_P(LyingRule, IsRefused) {
  TemporaryFolder root;
  const fs::path folder = save_checkpoint(root.path(), {{"model/w", at::ones({160})}}, 16);
  edit_manifest(folder, [](nlohmann::json& manifest) {
    auto& ranges = manifest["tensors"]["model/w"]["ranges"];
    ASSERT_EQ(ranges.size(), 1u);
    ASSERT_EQ(ranges[0]["repeat"].size(), 1u);
    GetParam().tell(ranges[0]);
  });
  const auto [kind, text] = error_of([&] { read_manifest(folder); });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text, HasSubstr(GetParam().answer));
}

using Json = nlohmann::json;
const RuleLie kRuleLies[] = {
    {"fewer", [](Json& range) { range["repeat"][0]["count"] = 15; }, "lacks elements 150 to 160 at its end"},
    {"more", [](Json& range) { range["repeat"][0]["count"] = 17; },
     "impossible range [0, 10), or copies of it,"},
    {"countless", [](Json& range) { range["repeat"][0]["count"] = INT64_MAX; }, "impossible range"},
    {"none", [](Json& range) { range["repeat"][0]["count"] = 0; }, "impossible range"},
    {"negative_files", [](Json& range) { range["repeat"][0]["files"] = -1; }, "impossible range"},
    {"one_file", [](Json& range) { range["repeat"][0]["files"] = 0; }, "impossible range"},
    {"overlap", [](Json& range) { range["repeat"][0]["begin"] = 9; },
     "stored twice: elements 9 to 19 in rank-00001.h5 overlap elements 0 to 10 in rank-00000.h5"},
    {"gaps", [](Json& range) { range["end"] = 9; }, "lacks elements 9 to 10, before those in rank-00001.h5"},
    {"backwards", [](Json& range) { range["repeat"][0]["begin"] = -10; }, "impossible range"},
    {"same_place", [](Json& range) { range["repeat"][0].erase("begin"); }, "stored twice"},
    {"same_files_again",
     [](Json& range) {
       range["repeat"].push_back({{"count", 2}, {"files", 1}});
     },
     "impossible range"},
    {"rows", [](Json& range) { range["repeat"][0]["row_begin"] = 1; }, "impossible range"},
    {"text", [](Json& range) { range["repeat"] = "16"; }, "\"repeat\" is not a list"},
    {"no_count", [](Json& range) { range["repeat"][0].erase("count"); }, "has no entry \"count\""},
};
INSTANTIATE_TEST_SUITE_P(LargeWorld, LyingRule, ::testing::ValuesIn(kRuleLies),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace fsdp::checkpoint
