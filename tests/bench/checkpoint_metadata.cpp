// checkpoint_metadata [ranks]: what the metadata of a checkpoint of so many ranks (16,384) takes, without its
// tensors: reports up the tree, manifest, verification, and plans to load it on a quarter of the ranks.

#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include "base/util/log.h"
#include "state/weights/shard_set.h"
#include "support/synthetic_checkpoint.h"

namespace fsdp {
namespace {

using testing::SyntheticCheckpoint;

double seconds_of(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double peak_megabytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024 / 1e6;
}

/// Reads of all slices of a rank; those of one tensor after the other where `rank` is that of all.
int64_t planned_reads(checkpoint::ShardSet& shards, const SyntheticCheckpoint& to, int begin, int end) {
  int64_t reads = 0;
  const auto unit = to.layout_of_unit();
  for (int rank = begin; rank < end; ++rank) {
    for (size_t p = 0; p < unit->parameters().size(); ++p) {
      const util::Rectangle wanted = unit->local_range(p, rank).columns;
      if (wanted.numel() == 0) continue;
      to.for_each_name(unit->parameters()[p].name, [&](const std::string& name) {
        reads += static_cast<int64_t>(shards.plan(name, wanted, nullptr).size());
      });
    }
  }
  return reads;
}

/// What rank 0 does beside the tree, in a process of its own, for its peak memory.
void measure(const char* what, SyntheticCheckpoint checkpoint) {
  // All units and states are cut alike, so the tree needs to carry one only; its messages are of all.
  SyntheticCheckpoint one = checkpoint;
  one.units = 1;
  std::string report;
  const double tree_of_one = seconds_of([&] { report = one.report_of_all(); });
  checkpoint::Manifest manifest = one.manifest(report), told;
  for (const auto& parameter : one.parameters()) {
    const auto entry = manifest.tensors.at("model/layers.0." + parameter.name + ".weight");
    checkpoint.for_each_name(parameter.name,
                             [&](const std::string& name) { manifest.tensors.emplace(name, entry); });
  }
  std::string text;
  const double write = seconds_of([&] {
    checkpoint::complete_manifest(manifest, "checkpoint");
    text = checkpoint::manifest_text(manifest);
  });
  manifest = {};
  const double read = seconds_of([&] { told = checkpoint::parse_manifest(text, "checkpoint"); });
  int64_t ranges = 0, rules = 0;
  for (const auto& [name, entry] : told.tensors) {
    rules += static_cast<int64_t>(entry.ranges.size());
    for (const auto& range : entry.ranges) ranges += range.count();
  }
  int64_t data_sets = 0;
  const double verify = seconds_of([&] {
    for (size_t file = 0; file < told.files.size(); ++file) {
      for (const auto& [name, entry] : told.tensors) data_sets += entry.numel_in(file) > 0;
    }
  });
  SyntheticCheckpoint fewer = checkpoint;
  fewer.world /= 4;
  fewer.replicas = 1;
  checkpoint::ShardSet shards("", told);
  int64_t reads = 0, all_reads = 0;
  const double plan = seconds_of([&] { reads = planned_reads(shards, fewer, 1, 2); });
  const double plans = seconds_of([&] { all_reads = planned_reads(shards, fewer, 0, fewer.world); });
  std::printf("%s, %d ranks, %zu tensors: %.1f million ranges by %ld rules, manifest %.1f MB\n", what,
              checkpoint.world, told.tensors.size(), static_cast<double>(ranges) / 1e6,
              static_cast<long>(rules), static_cast<double>(text.size()) / 1e6);
  std::printf("  reports of one unit up the tree, one rank after the other %6.2f s\n", tree_of_one);
  std::printf("  rank 0 checks and writes the manifest                     %6.2f s\n", write);
  std::printf("  the manifest is read and checked                          %6.2f s\n", read);
  std::printf("  verify finds what each file must hold                     %6.2f s  %.1f million data sets\n",
              verify, static_cast<double>(data_sets) / 1e6);
  std::printf("  one of %5d ranks plans its reads                         %6.3f s  %ld reads\n", fewer.world,
              plan, static_cast<long>(reads));
  std::printf("  all of them, one after the other                          %6.2f s  %.1f million reads\n",
              plans, static_cast<double>(all_reads) / 1e6);
  std::printf("  peak memory so far                                        %6.0f MB\n", peak_megabytes());
  std::fflush(stdout);
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  using namespace fsdp;
  return util::run_guarded([&] {
    testing::SyntheticCheckpoint checkpoint{
        .world = argc > 1 ? std::atoi(argv[1]) : 16384, .units = 128, .hidden = 8192, .intermediate = 28672};
    measure("flat", checkpoint);
    checkpoint.replicas = 16;
    measure("flat, 16 replicas", checkpoint);
    checkpoint.replicas = 1;
    checkpoint.layout = "per_parameter";
    measure("per_parameter", checkpoint);
    return 0;
  });
}
