#pragma once

// What the ranks of a world of any size would hold of a model, without its tensors: metadata for tests and
// measurements of checkpoints that are too large to be made.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/util/text.h"
#include "comm/api/rank_tree.h"
#include "shard/units/unit_layout.h"
#include "state/checkpoint/save_parts.h"
#include "state/manifest/manifest.h"

namespace fsdp::testing {

/// Decoder layers of a model, each a unit, with weights and two states of Adam, over `world` ranks:
/// `replicas` of as many shards, which are cut from the parts of `columns` ranks of tensor parallelism.
struct SyntheticCheckpoint {
  int world = 8;
  int units = 2;
  int64_t hidden = 64, intermediate = 176;
  const char* layout = "flat";
  int replicas = 1;
  int columns = 1;
  int64_t dimension = 0;  ///< of matrices on which the per_parameter layout cuts

  std::vector<shard::UnitLayout::Parameter> parameters() const {
    const int64_t h = hidden, part = h / columns, inner = intermediate / columns, d = dimension;
    return {{"q", {h, part}, d},
            {"k", {h, part}, d},
            {"v", {h, part}, d},
            {"o", {h, part}, d},
            {"gate", {h, inner}, d},
            {"up", {h, inner}, d},
            {"down", {intermediate, part}, d},
            {"norm1", {part}},
            {"norm2", {part}}};
  }
  std::unique_ptr<shard::UnitLayout> layout_of_unit() const {
    return shard::make_layout(layout, parameters(), shards());
  }
  int shards() const { return world / replicas / columns; }

  /// Rank `rank`'s parts of one parameter of each unit; ranks are numbered by replica, shard and column.
  std::vector<util::Rectangle> parts(const shard::UnitLayout& unit, size_t parameter, int rank) const {
    const int column = rank % columns, shard = rank / columns % shards(), replica = rank / columns / shards();
    const shard::ParameterPlace& place = unit.parameters()[parameter];
    util::Rectangle part = unit.local_range(parameter, shard).columns;
    if (replicas > 1) {
      const int64_t size = (part.length() + replicas - 1) / replicas, end = part.end;
      part.begin = std::min(part.begin + replica * size, end);
      part.end = std::min(part.begin + size, end);
    }
    if (part.numel() == 0) return {};
    if (columns == 1) return {part};
    const int64_t local_columns = place.shape.back(), rows = place.numel / local_columns;
    return util::compose(place.numel * columns, part,
                         {column * local_columns, (column + 1) * local_columns, rows});
  }

  /// visit(name) for the weight and the states of a parameter in every unit.
  template <typename Visit>
  void for_each_name(const std::string& parameter, const Visit& visit) const {
    for (const char* state : {"model/", "optimizer/exp_avg/", "optimizer/exp_avg_sq/"}) {
      for (int unit = 0; unit < units; ++unit) {
        visit(concat(state, "layers.", unit, ".", parameter, ".weight"));
      }
    }
  }

  /// A parameter with the ranges of one rank.
  checkpoint::TensorEntry entry(const shard::UnitLayout& unit, size_t parameter, int rank) const {
    const shard::ParameterPlace& place = unit.parameters()[parameter];
    checkpoint::TensorEntry entry{.shape = place.shape, .dtype = c10::ScalarType::Float};
    entry.rows = columns > 1 ? place.numel / place.shape.back() : unit.local_range(parameter, 0).columns.rows;
    entry.shape.back() *= columns;
    for (const util::Rectangle& part : parts(unit, parameter, rank)) {
      entry.ranges.push_back({.part = part, .file = static_cast<size_t>(rank)});
    }
    return entry;
  }

  std::string report(int rank) const {
    checkpoint::TensorEntries entries;
    const auto unit = layout_of_unit();
    for (size_t p = 0; p < unit->parameters().size(); ++p) {
      const checkpoint::TensorEntry each = entry(*unit, p, rank);
      if (rank > 0 && each.ranges.empty()) continue;
      for_each_name(unit->parameters()[p].name,
                    [&](const std::string& name) { entries.emplace(name, each); });
    }
    return checkpoint::report_of({.name = {}, .bytes = 4096 + rank, .xxh3_64 = "0123456789abcdef"},
                                 std::move(entries));
  }

  /// What the ranks say one by one, as releases before version 4 wrote it down.
  checkpoint::Manifest explicit_manifest() const {
    checkpoint::Manifest manifest{.step = 7, .world_size = world, .layout = layout};
    const auto unit = layout_of_unit();
    for (int rank = 0; rank < world; ++rank) {
      manifest.files.push_back({checkpoint::shard_file_name(rank, world), 4096 + rank, "0123456789abcdef"});
    }
    for (size_t p = 0; p < unit->parameters().size(); ++p) {
      checkpoint::TensorEntry all = entry(*unit, p, 0);
      for (int rank = 1; rank < world; ++rank) {
        for (checkpoint::RangeEntry& range : entry(*unit, p, rank).ranges) all.ranges.push_back(range);
      }
      for_each_name(unit->parameters()[p].name,
                    [&](const std::string& name) { manifest.tensors.emplace(name, all); });
    }
    return manifest;
  }

  /// The manifest before it is complete: `report` of all ranks, as it comes to rank 0.
  checkpoint::Manifest manifest(const std::string& report) const {
    checkpoint::Manifest manifest{.step = 7, .world_size = world, .layout = layout};
    checkpoint::add_report(manifest, report);
    return manifest;
  }

  /// The combined report of the ranks in the tree below `rank`, from level `level` on; what ranks of one
  /// level give is combined as comm::RankTree does.
  std::string report_below(int rank, size_t level) const {
    if (level == 0) return report(rank);
    const auto group = comm::RankTree::groups_of(rank, world)[level - 1];
    std::vector<std::string> reports;
    for (int each : group) reports.push_back(report_below(each, level - 1));
    int64_t below = 1;
    for (size_t i = 1; i < level; ++i) below *= comm::RankTree::kFanIn;
    const auto last = static_cast<int>(std::min<int64_t>(group.back() + below, world) - 1);
    return checkpoint::combined_reports(reports, rank, last, world);
  }
  std::string report_of_all() const { return report_below(0, comm::RankTree::groups_of(0, world).size()); }
};

}  // namespace fsdp::testing
