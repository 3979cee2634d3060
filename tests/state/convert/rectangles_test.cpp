// Checkpoints of tensors that are cut twice: over the axis `model` in columns of some view, and what a rank
// has of that over the axis `data`, flattened. Its parts are rectangles.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/tensor/rectangle_view.h"
#include "base/util/shape.h"
#include "state/checkpoint/load.h"
#include "state/checkpoint/save.h"
#include "state/convert/average.h"
#include "state/convert/consolidate.h"
#include "state/convert/inspect.h"
#include "state/convert/sharded_writer.h"
#include "state/weights/shard_set.h"
#include "state/weights/weights.h"
#include "support/checkpoint_fixtures.h"

namespace fsdp::checkpoint {
namespace {

namespace fs = std::filesystem;
using namespace fsdp::testing;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Grid {
  int data, model;
  int ranks() const { return data * model; }
};

struct Cut {
  std::string name;
  at::Tensor whole;
  int64_t rows;  ///< of the view of which `model` cuts the columns
};

at::Tensor numbered(std::vector<int64_t> shape) {
  return at::arange(c10::multiply_integers(shape), at::kFloat).view(shape);
}

std::vector<Cut> tensors_of_a_model() {
  return {{"model/layers.0.down_proj.weight", numbered({5, 8}), 5},
          {"model/layers.0.up_proj.weight", numbered({8, 5}), 1},
          {"model/layers.0.c_attn.weight", numbered({4, 24}), 12},  // queries, keys and values side by side
          {"model/layers.0.experts.weight", numbered({2, 3, 8}), 6},
          {"model/layers.0.norm.weight", numbered({7}), 0},  // not cut by `model`
          {"optimizer/exp_avg/layers.0.down_proj.weight", numbered({5, 8}).to(at::kBFloat16), 5}};
}

/// Copies of a rank's parts.
std::vector<shard::TensorSlice> parts_of(const std::vector<Cut>& tensors, const Grid& grid, int rank) {
  std::vector<shard::TensorSlice> slices;
  const int64_t data = rank / grid.model, model = rank % grid.model;
  for (const auto& [name, whole, rows] : tensors) {
    util::Rectangle local{0, rows == 0 && model > 0 ? 0 : whole.numel()};
    if (rows > 0) {
      const int64_t columns = whole.numel() / rows;
      local = {columns * model / grid.model, columns * (model + 1) / grid.model, rows};
    }
    const auto [begin, end] = even_part(local.numel(), static_cast<int>(data), grid.data);
    for (const util::Rectangle& part : util::compose(whole.numel(), {begin, end}, local)) {
      slices.push_back(
          {name, whole.sizes().vec(), part, util::rectangle_view(whole, part).clone().flatten()});
    }
  }
  return slices;
}

fs::path saved_by(const fs::path& root, const std::vector<Cut>& tensors, const Grid& grid,
                  bool full = false) {
  comm::run_ranks_as_threads(grid.ranks(), [&](comm::Communicator& communicator) {
    const SaveRequest request{.root = root, .step = 7, .layout = "flat"};
    (full ? save_full : save_sharded)(request, parts_of(tensors, grid, communicator.rank()), communicator);
  });
  return root / step_folder_name(7);
}

void expect_loads(const fs::path& folder, const std::vector<Cut>& tensors, const Grid& grid,
                  const std::string& what) {
  std::vector<Cut> zeros = tensors;
  for (Cut& each : zeros) each.whole = at::zeros_like(each.whole);
  for (int rank = 0; rank < grid.ranks(); ++rank) {
    const auto expected = parts_of(tensors, grid, rank), loaded = parts_of(zeros, grid, rank);
    load_slices(folder, read_manifest(folder), loaded, {.refuse_unexpected = true});
    for (size_t i = 0; i < loaded.size(); ++i) {
      EXPECT_TRUE(same_bits(loaded[i].data, expected[i].data))
          << what << " to rank " << rank << " of " << grid.data << " x " << grid.model << ": "
          << loaded[i].name;
    }
  }
}

constexpr Grid kGrids[] = {{1, 1}, {2, 2}, {3, 1}, {1, 4}, {5, 2}};

TEST(Rectangles, OfAnyGridAreLoadedByAnyOther) {
  const auto tensors = tensors_of_a_model();
  for (const Grid& from : kGrids) {
    for (bool full : {false, true}) {
      TemporaryFolder root;
      const fs::path folder = saved_by(root.path(), tensors, from, full);
      EXPECT_THAT(find_damage(folder), IsEmpty());
      for (const Grid& to : kGrids) {
        expect_loads(folder, tensors, to, concat(full ? "full, " : "", from.data, " x ", from.model));
      }
    }
  }
}

TEST(Rectangles, AreTheWholeTensorsForAllCommands) {
  const auto tensors = tensors_of_a_model();
  TemporaryFolder root;
  const fs::path folder = saved_by(root.path(), tensors, {2, 2});
  reshard(folder, root.path() / "resharded", 3, {});
  consolidate(folder, root.path() / "full", {.full = true, .optimizer = true});
  for (const char* rewritten : {"resharded", "full"}) {
    expect_loads(root.path() / rewritten, tensors, {1, 1}, rewritten);
    EXPECT_LE(nlohmann::json::parse(util::read_file(root.path() / rewritten / kManifestName))["version"], 1);
  }
  consolidate(folder, root.path() / "weights.safetensors", {});
  average({.inputs = {folder, folder}, .output = root.path() / "mean.safetensors"});
  for (const fs::path& path :
       {folder, root.path() / "weights.safetensors", root.path() / "mean.safetensors"}) {
    const Weights weights = open_weights(path);
    for (const auto& [name, whole, rows] : tensors) {
      if (!name.starts_with(kWeightsPrefix)) continue;
      at::Tensor read = at::zeros_like(whole);
      weights.read_into(name.substr(6), read);
      EXPECT_TRUE(same_bits(read, whole)) << path << ": " << name;
    }
  }
}

// So that older releases read all checkpoints that they can, and refuse others as too new, not as damaged.
TEST(Rectangles, RaiseTheVersionOfTheFormatOnlyWhereThereAreAny) {
  struct Case {
    std::vector<int64_t> shape;
    int64_t rows;
    Grid grid;
    int version;
  };
  for (const auto& [shape, rows, grid, version] :
       {Case{{4, 6}, 1, {2, 2}, 1}, Case{{4, 6}, 4, {1, 2}, 2}, Case{{4, 6}, 4, {2, 2}, 3},
        Case{{4, 6}, 8, {1, 3}, 3}, Case{{2, 2, 6}, 4, {1, 2}, 2}}) {
    TemporaryFolder root;
    const fs::path folder = saved_by(root.path(), {{"model/w", numbered(shape), rows}}, grid);
    const auto manifest = nlohmann::json::parse(util::read_file(folder / kManifestName));
    EXPECT_EQ(manifest["version"], version) << util::shape_text(shape) << " in " << rows << " rows";
    for (const auto& range : manifest["tensors"]["model/w"]["ranges"]) {
      EXPECT_EQ(range.size(), version == 3 && grid.data > 1 ? 5u : 3u) << range;
    }
  }
}

TEST(Rectangles, InAFileOfAnotherGridAreOneReadForEachDistanceOfTheirRows) {
  TemporaryFolder root;
  const std::vector<Cut> tensors = {{"model/w", numbered({100, 8}), 100}};
  const fs::path folder = saved_by(root.path(), tensors, {2, 2});
  const Manifest manifest = read_manifest(folder);
  ShardSet shards(folder, manifest);
  EXPECT_EQ(shards.plan("model/w", {0, 4, 100}, nullptr).size(), 2u);
  EXPECT_EQ(shards.plan("model/w", {1, 7, 100, 20, 80}, nullptr).size(), 4u);
  EXPECT_EQ(shards.plan("model/w", {0, 800}, nullptr).size(), 4u);
}

struct RectangleLie {
  const char* name;
  void (*tell)(nlohmann::json& range);
  const char* answer;
};

class LyingRectangle : public ::testing::TestWithParam<RectangleLie> {};

TEST_P(LyingRectangle, IsRefused) {
  TemporaryFolder root;
  // Columns 0 to 4 of rows 0 to 3 and 3 to 6, columns 4 to 8 of the same.
  const fs::path folder = saved_by(root.path(), {{"model/w", numbered({6, 8}), 6}}, {2, 2});
  edit_manifest(folder, [](nlohmann::json& manifest) {
    auto& ranges = manifest["tensors"]["model/w"]["ranges"];
    ASSERT_EQ(ranges.size(), 4u);
    GetParam().tell(ranges[2]);
  });
  const auto [kind, text] = error_of([&] { read_manifest(folder); });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text, HasSubstr(GetParam().answer));
}

const RectangleLie kRectangleLies[] = {
    {"rows_lacking", [](nlohmann::json& range) { range["row_begin"] = 4; },
     "model/w lacks 4 of its 48 elements"},
    {"columns_lacking", [](nlohmann::json& range) { range["end"] = 3; }, "lacks 3 of its 48 elements"},
    {"rows_twice", [](nlohmann::json& range) { range["row_begin"] = 2; },
     "stored twice: columns 0 to 4 of rows 2 to 6 in rank-00002.h5 overlap columns 0 to 4 of rows 0 to 3 in "
     "rank-00000.h5"},
    {"columns_twice", [](nlohmann::json& range) { range["end"] = 5; },
     "stored twice: columns 4 to 8 of rows 3 to 6 in rank-00003.h5 overlap columns 0 to 5 of rows 3 to 6 in "
     "rank-00002.h5"},
    {"all_rows", [](nlohmann::json& range) { range.erase("row_begin"), range.erase("row_end"); },
     "stored twice"},
    {"elsewhere", [](nlohmann::json& range) { range["row_begin"] = 0, range["row_end"] = 3; },
     "stored twice"},
    {"below_the_end", [](nlohmann::json& range) { range["row_end"] = 7; },
     "impossible range [0, 4) of rows [3, 7) in rank-00002.h5 (it has 8 columns and 6 rows)"},
    {"above_the_beginning", [](nlohmann::json& range) { range["row_begin"] = -1; }, "impossible range"},
    {"backwards", [](nlohmann::json& range) { range["row_end"] = 2; }, "impossible range"},
    {"no_rows", [](nlohmann::json& range) { range["row_end"] = 3; }, "impossible range"},
    {"huge", [](nlohmann::json& range) { range["row_end"] = INT64_MAX; }, "impossible range"},
    {"fraction", [](nlohmann::json& range) { range["row_begin"] = 0.5; },
     "\"row_begin\" is not a whole number"},
};

INSTANTIATE_TEST_SUITE_P(Rectangles, LyingRectangle, ::testing::ValuesIn(kRectangleLies),
                         [](const auto& lie) { return lie.param.name; });

TEST(Rectangles, ThatDoNotAddUpAreNotSaved) {
  TemporaryFolder root;
  const std::vector<Cut> tensors = {{"model/w", numbered({6, 8}), 6}};
  const auto [kind, text] = error_of([&] {
    comm::run_ranks_as_threads(4, [&](comm::Communicator& communicator) {
      auto slices = parts_of(tensors, {2, 2}, communicator.rank());
      if (communicator.rank() == 3) slices = parts_of(tensors, {2, 2}, 2);
      save_sharded({.root = root.path(), .step = 7, .layout = "flat"}, slices, communicator);
    });
  });
  EXPECT_EQ(kind, ErrorKind::kCheckpoint);
  EXPECT_THAT(text, HasSubstr("model/w is stored twice"));
  EXPECT_FALSE(fs::exists(root.path() / step_folder_name(7)));
}

}  // namespace
}  // namespace fsdp::checkpoint
