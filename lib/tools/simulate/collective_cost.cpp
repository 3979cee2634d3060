#include "tools/simulate/collective_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "base/util/error.h"
#include "comm/options/link_type.h"

namespace fsdp::simulate {
namespace {

/// Largest size that shm copies through stages with one meeting (comm/shm/shm_communicator.cpp).
constexpr double kSmallBytes = 32 << 10;

/// The level on which the hosts of a group communicate.
Level level_of(const RankGroup& group) {
  if (group.hosts() == 1) return Level::kInside;
  return group.is_between_slices ? Level::kSlices : Level::kBetween;
}

/// A stage in which the rank receives `bytes` in `steps` steps on this level.
Stage transfer(const NetworkTable& network, Level level, double steps, double bytes) {
  const Link& link = network.at(level);
  Stage stage{.delay_seconds = steps * link.latency_seconds,
              .delay_beside_compute = steps * link.latency_beside_compute,
              .core_seconds = bytes * link.core_seconds_per_byte};
  (level == Level::kInside    ? stage.inside_bytes
   : level == Level::kBetween ? stage.between_bytes
                              : stage.slice_bytes) = bytes;
  return stage;
}

/// A stage with `count` meetings of the ranks of a host, and work of their cores.
Stage meetings(const NetworkTable& network, double count, double core_seconds) {
  Stage stage = transfer(network, Level::kInside, count, 0);
  stage.core_seconds = core_seconds;
  return stage;
}
void add_meetings(Stage& stage, const NetworkTable& network, double count) {
  stage.delay_seconds += count * network.inside.latency_seconds;
  stage.delay_beside_compute += count * network.inside.latency_beside_compute;
}

/// Cost for ranks that share memory.
Cost shared_memory(const CollectiveCall& call, const NetworkTable& network) {
  const double ranks = call.group.ranks, bytes = call.bytes;
  switch (call.kind) {
    case CollectiveKind::kAllGather:
      if (bytes <= kSmallBytes) return {meetings(network, 1, network.copy_seconds(ranks * bytes))};
      return {meetings(network, 2, network.copy_seconds(bytes))};
    case CollectiveKind::kReduceScatter:
      if (call.is_coded()) return {meetings(network, 2, network.copy_seconds(ranks * bytes))};
      return {meetings(network, 2, network.sum_seconds(ranks * bytes))};
    case CollectiveKind::kAllReduce:
      if (bytes <= kSmallBytes) return {meetings(network, 1, network.sum_seconds(ranks * bytes))};
      if (call.is_coded()) return {meetings(network, 4, network.copy_seconds(2 * bytes))};
      return {meetings(network, 3,
                       network.sum_seconds(bytes) + network.copy_seconds((ranks - 1) / ranks * bytes))};
    case CollectiveKind::kExchange:
      return {meetings(network, 2, network.copy_seconds(bytes))};
  }
  return {};
}

Cost gloo(const CollectiveCall& call, const NetworkTable& network) {
  const double ranks = call.group.ranks, bytes = call.bytes;
  const Level level = level_of(call.group);
  switch (call.kind) {
    case CollectiveKind::kAllGather: {
      Stage stage = transfer(network, level, 1, (ranks - 1) * bytes);
      stage.core_seconds += network.copy_seconds(bytes);
      return {stage};
    }
    case CollectiveKind::kReduceScatter:
      return {transfer(network, level, 1, (ranks - 1) * bytes),
              {.core_seconds = call.is_coded() ? 0 : network.sum_seconds(ranks * bytes)}};
    case CollectiveKind::kAllReduce: {  // segments are added up while the next are under way
      const double received = 2 * (ranks - 1) / ranks * bytes;
      const double steps = 2 * (ranks - 1), ring_latency = network.at(level).ring_latency_seconds;
      Stage stage = transfer(network, level, steps, received);
      if (ring_latency > 0) stage.delay_seconds = steps * ring_latency;
      stage.core_seconds += network.sum_seconds(received / 2);
      return {stage};
    }
    case CollectiveKind::kExchange:
      return {transfer(network, level, 1, bytes)};
  }
  return {};
}

Cost mpi(const CollectiveCall& call, const NetworkTable& network) {
  const double ranks = call.group.ranks, bytes = call.bytes;
  const Level level = level_of(call.group);
  switch (call.kind) {
    case CollectiveKind::kAllGather:
      return {transfer(network, level, std::ceil(std::log2(ranks)), (ranks - 1) * bytes)};
    case CollectiveKind::kReduceScatter: {  // pieces are added up while the next are under way
      Stage stage = transfer(network, level, 1, (ranks - 1) * bytes);
      if (!call.is_coded()) stage.core_seconds += network.sum_seconds(ranks * bytes);
      return {stage};
    }
    case CollectiveKind::kAllReduce: {
      Stage stage = transfer(network, level, 2, 2 * (ranks - 1) / ranks * bytes);
      stage.core_seconds += network.sum_seconds(bytes);
      return {stage};
    }
    case CollectiveKind::kExchange:
      return {transfer(network, level, 1, bytes)};
  }
  return {};
}

/// Cost of counterparts that exchange parts between hosts while ranks inside each host do
/// (comm/backends/hierarchical_communicator.h).
Cost hierarchical(const CollectiveCall& call, const NetworkTable& network) {
  const double hosts = call.group.hosts(), here = call.group.ranks_of_host, bytes = call.bytes;
  const Level level = level_of(call.group);
  switch (call.kind) {
    case CollectiveKind::kAllGather: {
      Stage stage = transfer(network, level, 1, (hosts - 1) * bytes);
      add_meetings(stage, network, 2 * hosts);
      stage.core_seconds += network.copy_seconds(hosts * (here - 1) * bytes);
      return {stage};
    }
    case CollectiveKind::kReduceScatter: {
      Stage stage = transfer(network, level, 1, (hosts - 1) * bytes);
      add_meetings(stage, network, 2 * hosts);
      stage.core_seconds += network.sum_seconds(hosts * here * call.memory_bytes());
      return {stage, {.core_seconds = call.is_coded() ? 0 : network.sum_seconds(hosts * bytes)}};
    }
    case CollectiveKind::kAllReduce: {
      if (bytes <= kSmallBytes / 2) {  // whole tensors, in one exchange
        Stage stage = transfer(network, level, 1, (hosts - 1) * bytes);
        add_meetings(stage, network, 1);
        return {stage};
      }
      const double piece = bytes / here;
      Stage stage = transfer(network, level, 2, 2 * (hosts - 1) / hosts * piece);
      add_meetings(stage, network, 4);
      stage.core_seconds += network.sum_seconds(bytes + piece) + network.copy_seconds((here - 1) * piece);
      return {stage};
    }
    case CollectiveKind::kExchange:
      return {transfer(network, level, 1, bytes)};
  }
  return {};
}

/// Figures of NCCL's model for its algorithms and protocols: seconds of a collective and of a step relative
/// to the ring's protocol "Simple", and the share of the bandwidth.
struct NcclProtocol {
  double base, inside, between, bandwidth;
  bool is_tree;
};
constexpr NcclProtocol kNcclProtocols[] = {
    {8.4 / 8.4, 3.4 / 3.4, 14.0 / 14.0, 1, false},            // Simple
    {14.0 / 8.4, 1.9 / 3.4, 4.0 / 14.0, 120.0 / 128, false},  // LL128
    {6.6 / 8.4, 0.6 / 3.4, 2.7 / 14.0, 0.25, false},          // LL
    {8.4 / 8.4, 4.0 / 3.4, 14.0 / 14.0, 0.9, true},
    {6.8 / 8.4, 0.6 / 3.4, 5.0 / 14.0, 0.25, true},  // LL
};

Cost nccl(const CollectiveCall& call, const NetworkTable& network) {
  const double ranks = call.group.ranks, here = call.group.ranks_of_host, hosts = call.group.hosts();
  const bool reduces_all = call.kind == CollectiveKind::kAllReduce;
  const Level level = level_of(call.group);
  const double times = reduces_all ? 2 : 1, payload = reduces_all ? call.bytes / ranks : call.bytes;
  const double inside_bytes =
      here == 1 ? 0 : (call.kind == CollectiveKind::kExchange ? call.bytes : times * (ranks - 1) * payload);
  double between_bytes = 0;
  // Coded parts go from each rank to each other rank.
  const bool is_direct = call.is_coded() && call.kind != CollectiveKind::kAllGather;
  if (hosts > 1) {
    between_bytes = call.kind == CollectiveKind::kExchange
                        ? call.bytes
                        : times * (ranks - here) * payload / (is_direct ? 1 : here);
  }
  Cost best;
  double least = std::numeric_limits<double>::infinity();
  for (const NcclProtocol& protocol : kNcclProtocols) {
    if (protocol.is_tree && !reduces_all) continue;
    double inside_steps = times * (ranks - hosts), between_steps = times * (hosts - 1);
    if (protocol.is_tree) {
      inside_steps = 2 * (here - 1);
      between_steps = 2 * std::ceil(std::log2(hosts));
    }
    if (call.kind == CollectiveKind::kExchange) {
      inside_steps = hosts > 1 ? 0 : 1;
      between_steps = hosts > 1 ? 1 : 0;
    }
    Stage stage{.delay_seconds = protocol.base * network.base_seconds +
                                 inside_steps * protocol.inside * network.inside.latency_seconds +
                                 between_steps * protocol.between * network.at(level).latency_seconds,
                .inside_bytes = inside_bytes / protocol.bandwidth};
    (level == Level::kSlices ? stage.slice_bytes : stage.between_bytes) = between_bytes / protocol.bandwidth;
    const Cost cost{stage};
    const double seconds = seconds_alone(cost, network, 0);
    if (seconds >= least) continue;
    least = seconds;
    best = cost;
  }
  return best;
}

using CostFunction = Cost(const CollectiveCall&, const NetworkTable&);

/// Cost of a hierarchy over `network_cost`; in a group of one host, or of one rank per host, there is none.
template <CostFunction* network_cost>
Cost by_hosts(const CollectiveCall& call, const NetworkTable& network) {
  if (call.group.hosts() == 1) return shared_memory(call, network);
  return (call.group.ranks_of_host == 1 ? network_cost : hierarchical)(call, network);
}

constexpr double kPieceBytes = comm::kCodedPiece * sizeof(float);

/// The ranks that code, and what they code at once.
struct CodingRanks {
  double senders;      ///< number of those whose sums are coded for each part
  double whole;        ///< number of those whose parts are decoded as a whole, not in pieces
  double piece_bytes;  ///< bytes in memory of a piece of a part
};

/// Adds the time of the codes, as in comm/api/coded_exchange.cpp: that of a first piece is before the
/// transfers, that of a last one after them, and the rest beside them.
void add_codes(Cost& stages, const CollectiveCall& call, const CodingRanks& coding,
               const NetworkTable& network) {
  constexpr double kCopiesOfSum = 2;  // of the own part into the sum, and of the sum into the output
  const double ranks = call.group.ranks, senders = coding.senders;
  const double part = call.uncoded_bytes / (call.kind == CollectiveKind::kAllReduce ? ranks : 1);
  const double piece = std::min(part, coding.piece_bytes);
  const auto sums = [&](double bytes) {
    return network.decode_seconds((senders - 1) * bytes) + network.copy_seconds(kCopiesOfSum * bytes);
  };
  double before = 0, after = 0, all = 0;
  switch (call.kind) {
    case CollectiveKind::kAllGather:
      before = network.encode_seconds(piece);
      after = network.decode_seconds(coding.whole > 0 ? coding.whole * part : (ranks - 1) * piece);
      all = network.encode_seconds(part) + network.decode_seconds(ranks * part);
      break;
    case CollectiveKind::kReduceScatter:
      before = network.encode_seconds((senders - 1) * piece);
      after = sums(piece);
      all = network.encode_seconds((senders - 1) * part) + sums(part);
      break;
    case CollectiveKind::kAllReduce:
      before = network.encode_seconds((senders - 1) * piece);
      after = network.decode_seconds((ranks - 1) * piece);
      all = network.encode_seconds(senders * part) + sums(part) + network.decode_seconds(ranks * part);
      break;
    case CollectiveKind::kExchange:
      return;
  }
  const auto bytes = [](const Stage& stage) { return stage.between_bytes + stage.slice_bytes; };
  const auto transfer = std::ranges::max_element(stages, {}, bytes);
  transfer->core_seconds += std::max(0.0, all - before - after);
  stages.insert(stages.begin(), {.core_seconds = before});
  stages.push_back({.core_seconds = after});
}

template <CostFunction* cost>
Cost on_cores(const CollectiveCall& call, const NetworkTable& network) {
  Cost stages = cost(call, network);
  if (stages.empty()) return stages;
  if (call.is_coded()) {
    const bool is_by_hosts = call.group.hosts() > 1 && (cost == by_hosts<gloo> || cost == by_hosts<mpi>);
    const double others = call.group.ranks - call.group.ranks_of_host;
    const bool has_pieces = cost == gloo || is_by_hosts;
    add_codes(stages, call,
              {.senders = static_cast<double>(is_by_hosts ? call.group.hosts() : call.group.ranks),
               .whole = !has_pieces                                   ? 1.0 * call.group.ranks
                        : is_by_hosts && call.group.ranks_of_host > 1 ? others
                                                                      : 0,
               .piece_bytes = has_pieces ? kPieceBytes : call.uncoded_bytes},
              network);
  }
  stages.front().delay_seconds += network.base_seconds;
  stages.front().core_seconds += network.core_seconds;
  return stages;
}

struct BackendCost {
  std::string_view backend;
  CostFunction* cost;
};
constexpr BackendCost kBackendCosts[] = {{"shm", on_cores<shared_memory>},
                                         {"gloo", on_cores<gloo>},
                                         {"mpi", on_cores<mpi>},
                                         {"hierarchical", on_cores<by_hosts<gloo>>},
                                         {"hierarchical_mpi", on_cores<by_hosts<mpi>>},
                                         {"nccl", nccl}};

}  // namespace

double Stage::bytes_at(Level level) const {
  const double bytes[] = {inside_bytes, between_bytes, slice_bytes};
  return bytes[static_cast<size_t>(level)];
}

Cost cost_of(const CollectiveCall& call, comm::Backend backend, const NetworkTable& network) {
  if (call.group.ranks < 2) return {};
  const std::string_view name = comm::row_of(backend).name;
  for (const BackendCost& row : kBackendCosts) {
    if (row.backend == name) return row.cost(call, network);
  }
  fail(ErrorKind::kUnexpected, "a collective needs a backend");
}

double bytes_from_other_hosts(const CollectiveCall& call, comm::Backend backend) {
  const double ranks = call.group.ranks, here = call.group.ranks_of_host, hosts = call.group.hosts();
  if (hosts < 2) return 0;
  const std::string_view name = comm::row_of(backend).name;
  const bool is_hierarchical = name.starts_with("hierarchical") && here > 1;
  // Each tensor reaches a host once, and not once for each of its ranks.
  const bool is_received_once = is_hierarchical || name == "nccl";
  switch (call.kind) {
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
      return (ranks - here) * call.bytes / (is_received_once ? here : 1);
    case CollectiveKind::kAllReduce:
      if (is_hierarchical && call.bytes <= kSmallBytes / 2) return (hosts - 1) * call.bytes;
      if (is_received_once) return 2 * (hosts - 1) / hosts * call.bytes / here;
      // In gloo's ring, one rank of a host has its neighbour on another.
      return name == "mpi" ? 2 * (ranks - here) / ranks * call.bytes
                           : 2 * (ranks - 1) / ranks * call.bytes / here;
    case CollectiveKind::kExchange:
      return call.bytes / here;
  }
  return 0;
}

double transfer_seconds(const Stage& stage, const NetworkTable& network, double cores) {
  double seconds = cores > 0 ? stage.core_seconds * std::max(1.0, 1 / cores) : stage.core_seconds;
  for (const Level level : {Level::kInside, Level::kBetween, Level::kSlices}) {
    seconds = std::max(seconds, seconds_at_rate(stage.bytes_at(level), network.at(level).bytes_per_second));
  }
  return seconds;
}

double seconds_alone(const Cost& cost, const NetworkTable& network, double cores) {
  double seconds = 0;
  for (const Stage& stage : cost) seconds += stage.delay_seconds + transfer_seconds(stage, network, cores);
  return seconds;
}

}  // namespace fsdp::simulate
