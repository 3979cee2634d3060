#include "shard/engine/rank_checks.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>

#include "base/util/error.h"
#include "base/util/hash.h"
#include "base/util/log.h"
#include "base/util/text.h"
#include "shard/engine/engine.h"

namespace fsdp::shard {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

/// A parameter whose values differ, and two ranks of the run that differ.
struct Difference {
  int64_t parameter = kNone;  ///< index into Engine::segments_by_parameter(): alike on all ranks
  int64_t first_rank = 0, other_rank = 0;
};

int64_t hash_of(const at::Tensor& part) {
  at::Tensor host = part.to(at::kCPU).contiguous();
  return static_cast<int64_t>(util::xxh3_64(host.data_ptr(), host.nbytes()));
}

/// [ranks, values]
at::Tensor gathered(comm::Communicator& group, const std::vector<int64_t>& values) {
  at::Tensor mine = at::empty({static_cast<int64_t>(values.size())}, at::kLong);
  std::copy(values.begin(), values.end(), mine.data_ptr<int64_t>());
  at::Tensor all = at::empty({group.world_size() * mine.numel()}, at::kLong);
  group.all_gather(all, mine, {.unit = "comparison of replicas"})->wait();
  return all.view({group.world_size(), -1});
}

/// Returns the first difference among the units whose replicas are the ranks of `group`. Collective over
/// `group`.
Difference first_difference(Engine& engine, const std::shared_ptr<comm::Communicator>& group) {
  std::vector<int64_t> parameters, values = {engine.communicator().rank()};
  const auto all_segments = engine.segments_by_parameter();
  for (size_t i = 0; i < all_segments.size(); ++i) {
    const Segment& first = all_segments[i].front();
    const Unit& unit = *engine.units()[first.unit];
    if (unit.groups().replicate != group) continue;
    parameters.push_back(static_cast<int64_t>(i));
    const at::Tensor& shard = unit.storage().shard();
    values.push_back(hash_of(shard.narrow(0, first.shard_offset, numel_of(all_segments[i]))));
  }
  if (parameters.empty()) return {};
  at::Tensor all = gathered(*group, values);
  auto table = all.accessor<int64_t, 2>();  // by replica: its rank, then its hashes
  for (size_t i = 0; i < parameters.size(); ++i) {
    auto column = static_cast<int64_t>(i + 1);
    for (int64_t replica = 1; replica < all.size(0); ++replica) {
      if (table[replica][column] == table[0][column]) continue;
      return {parameters[i], table[0][0], table[replica][0]};
    }
  }
  return {};
}

}  // namespace

std::optional<OrderDifference> check_across_ranks(comm::Communicator& world, size_t unit) {
  int ranks = world.world_size();
  at::Tensor mine = at::empty({1}, at::kLong), all = at::empty({ranks}, at::kLong);
  mine.data_ptr<int64_t>()[0] = static_cast<int64_t>(unit);
  world.all_gather(all, mine, {.unit = "execution order", .pass = "forward"})->wait();
  const int64_t* units = all.data_ptr<int64_t>();
  for (int rank = 1; rank < ranks; ++rank) {
    if (units[rank] == units[0]) continue;
    return OrderDifference{rank, static_cast<size_t>(units[rank]), static_cast<size_t>(units[0])};
  }
  return std::nullopt;
}

std::vector<std::string> unequal_buffers(const Engine& engine) {
  comm::Communicator& world = engine.communicator();
  if (engine.buffers().empty() || world.world_size() == 1) return {};
  // Hashes and their complements: where all are equal, so are the largest of both.
  at::Tensor largest = at::empty({static_cast<int64_t>(engine.buffers().size()), 2}, at::kLong);
  auto hashes = largest.accessor<int64_t, 2>();
  for (int64_t i = 0; i < hashes.size(0); ++i) {
    hashes[i][0] = hash_of(engine.buffers()[static_cast<size_t>(i)].tensor);
    hashes[i][1] = ~hashes[i][0];
  }
  world.all_reduce(largest, comm::ReduceOp::kMax, {.unit = "comparison of replicas"})->wait();
  std::vector<std::string> names;
  for (int64_t i = 0; i < hashes.size(0); ++i) {
    if (hashes[i][0] != ~hashes[i][1]) names.push_back(engine.buffers()[static_cast<size_t>(i)].name);
  }
  return names;
}

void warn_of_unequal_buffers(const Engine& engine, const char* what) {
  const std::vector<std::string> names = unequal_buffers(engine);
  if (names.empty() || engine.communicator().rank() != 0) return;
  util::log_warning(concat(what, ": the values of rank 0 are used for buffers that differ between ranks: ",
                           util::name_list(names)));
}

void require_equal_replicas(Engine& engine, const std::string& when) {
  std::vector<std::shared_ptr<comm::Communicator>> groups;
  for (const auto& unit : engine.units()) {
    const auto& group = unit->groups().replicate;
    if (group && std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
  }
  if (groups.empty()) return;  // the same decision on all ranks
  Difference mine;
  for (const auto& group : groups) {
    Difference found = first_difference(engine, group);
    if (found.parameter < mine.parameter) mine = found;
  }
  at::Tensor all = gathered(engine.communicator(), {mine.parameter, mine.first_rank, mine.other_rank});
  auto table = all.accessor<int64_t, 2>();
  Difference first;
  for (int64_t rank = 0; rank < all.size(0); ++rank) {
    if (table[rank][0] < first.parameter) first = {table[rank][0], table[rank][1], table[rank][2]};
  }
  if (first.parameter == kNone) return;
  throw comm::AgreedError(
      ErrorKind::kUnexpected,
      concat(when, ": expected the same values of parameter ",
             engine.segments_by_parameter()[static_cast<size_t>(first.parameter)].front().name, " on ranks ",
             first.first_rank, " and ", first.other_rank,
             ", which hold replicas of it; found different ones on rank ", first.other_rank,
             "; start all ranks from the same weights, or resume from an earlier checkpoint"));
}

}  // namespace fsdp::shard
