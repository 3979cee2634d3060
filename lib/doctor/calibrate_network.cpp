#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "doctor/calibrate.h"
#include "doctor/stopwatch.h"

namespace fsdp::doctor {
namespace {

using comm::Communicator;
using simulate::Link;
using simulate::NetworkTable;

/// Elements of 4 bytes in a rank's part; of a link as many as in that of a usual unit.
constexpr int64_t kFew = 256, kManyOfLink = int64_t{1} << 20, kMany = int64_t{4} << 20;
constexpr int kLeastTimes = 3, kMostTimes = 100;
constexpr double kSecondsEach = 0.4;

/// As steady_seconds(), of a collective that all ranks run as often.
double seconds_of(Communicator& group, const std::function<void()>& run) {
  const auto timed = [&run] {
    const auto begin = std::chrono::steady_clock::now();
    run();
    return util::seconds_since(begin);
  };
  run();
  at::Tensor first = at::full({1}, timed(), at::kDouble);
  group.all_reduce(first, comm::ReduceOp::kMax, {.unit = "calibration"})->synchronize();
  const int times = std::clamp(static_cast<int>(kSecondsEach / std::max(first.item<double>(), 1e-6)),
                               kLeastTimes, kMostTimes);
  std::vector<double> seconds;
  for (int i = 0; i < times; ++i) seconds.push_back(timed());
  std::ranges::sort(seconds);
  return seconds[seconds.size() / 4];
}

/// Tensors for collectives of n elements a rank, where those of units lie.
struct Tensors {
  at::Tensor part, whole;

  Tensors(Communicator& group, int64_t n)
      : part(group.allocate(n, at::kFloat)), whole(group.allocate(n * group.world_size(), at::kFloat)) {
    part.fill_(1);
    whole.fill_(1);
  }
};

double all_gather_seconds(Communicator& group, int64_t n) {
  const Tensors tensors(group, n);
  return seconds_of(
      group, [&] { group.all_gather(tensors.whole, tensors.part, {.unit = "calibration"})->synchronize(); });
}

double reduce_scatter_seconds(Communicator& group, int64_t n) {
  const Tensors tensors(group, n);
  return seconds_of(group, [&] {
    group.reduce_scatter(tensors.part, tensors.whole, {.unit = "calibration"})->synchronize();
  });
}

/// To hand a task to the communication's thread and back.
double base_seconds(Communicator& group) {
  return steady_seconds([&] { group.enqueue([] {})->synchronize(); });
}

double copy_rate() {
  const at::Tensor from = at::full({kMany}, 1, at::kFloat), to = at::empty({kMany}, at::kFloat);
  const double bytes = static_cast<double>(from.nbytes());
  return bytes / steady_seconds([&] { at::Tensor(to).copy_(from); });
}

/// Of the tensor that is added to another.
double sum_rate() {
  const at::Tensor from = at::full({kMany}, 1, at::kFloat), to = at::full({kMany}, 1, at::kFloat);
  return static_cast<double>(from.nbytes()) / steady_seconds([&] { at::Tensor(to).add_(from); });
}

double part_bytes(int64_t elements = kMany) { return 4 * static_cast<double>(elements); }

/// Meetings, copies and sums of ranks that share memory.
void measure_shared_memory(Communicator& group, NetworkTable& network) {
  const double ranks = group.world_size();
  const at::Tensor small = at::full({4}, 1, at::kFloat);
  const double meeting = seconds_of(
      group, [&] { group.all_reduce(small, comm::ReduceOp::kMax, {.unit = "calibration"})->synchronize(); });
  network.inside.latency_seconds = std::max(0.0, meeting - network.base_seconds);
  const double fixed = network.base_seconds + 2 * network.inside.latency_seconds;
  const auto rate = [&](double seconds) { return ranks * part_bytes() / std::max(seconds - fixed, 1e-6); };
  network.copy_bytes_per_second = rate(all_gather_seconds(group, kMany));
  network.sum_bytes_per_second = rate(reduce_scatter_seconds(group, kMany));
}

/// A link over which whole rings of the group go: gloo's, or the direct sends of MPI.
Link measure_link(Communicator& group, const NetworkTable& network, bool is_ring) {
  const double others = group.world_size() - 1;
  const double steps = is_ring ? others : std::max(1.0, std::ceil(std::log2(group.world_size())));
  Link link;
  link.latency_seconds = std::max(0.0, all_gather_seconds(group, kFew) - network.base_seconds) / steps;
  const double begin = processor_seconds();
  const auto wall_begin = std::chrono::steady_clock::now();
  const double gather = all_gather_seconds(group, kManyOfLink);
  const double busy = (processor_seconds() - begin) / util::seconds_since(wall_begin);
  const double part = part_bytes(kManyOfLink);
  const double copies = is_ring ? group.world_size() * part / network.copy_bytes_per_second : 0;
  const double fixed = network.base_seconds + steps * link.latency_seconds + copies;
  const double bytes = others * part;
  link.bytes_per_second = bytes / std::max(gather - fixed, 1e-6);
  link.core_seconds_per_byte = std::max(0.0, busy * gather - copies) / bytes;
  return link;
}

/// NCCL's latencies stay those of its own model.
Link measure_device_link(Communicator& group, double latency) {
  const double bytes = (group.world_size() - 1) * part_bytes();
  return {.latency_seconds = latency,
          .bytes_per_second = bytes / std::max(all_gather_seconds(group, kMany), 1e-6)};
}

std::vector<int> every(int first, int step, int count) {
  std::vector<int> ranks;
  for (int i = 0; i < count; ++i) ranks.push_back(first + i * step);
  return ranks;
}

}  // namespace

NetworkTable measure_network(Communicator& communicator, const RankPlaces& places) {
  const int world = communicator.world_size(), here = places.local_world_size, rank = communicator.rank();
  const std::string backend = communicator.backend_name();
  NetworkTable network{.name = "this machine", .source = "measured"};
  const auto host = [&] {
    return communicator.subgroup("calibration host", every(rank / here * here, 1, here));
  };
  const auto counterparts = [&] {
    return communicator.subgroup("calibration counterparts", every(rank % here, here, world / here));
  };
  if (!communicator.device().is_cpu()) {
    network.base_seconds = simulate::kCollectiveLatency;
    if (here > 1) network.inside = measure_device_link(*host(), simulate::kNvlinkLatency);
    if (here < world)
      network.between = network.slices = measure_device_link(*counterparts(), simulate::kNetworkLatency);
    return network;
  }
  network.base_seconds = base_seconds(communicator);
  if (backend.starts_with("hierarchical")) {
    measure_shared_memory(*host(), network);
    network.between = network.slices =
        measure_link(*counterparts(), network, /*is_ring=*/backend == "hierarchical");
  } else if (backend == "shm") {
    measure_shared_memory(communicator, network);
  } else {
    network.copy_bytes_per_second = copy_rate();
    network.sum_bytes_per_second = sum_rate();
    Link& link = here == world ? network.inside : network.between;
    link = measure_link(communicator, network, /*is_ring=*/backend == "gloo");
    network.slices = network.between;
  }
  return network;
}

}  // namespace fsdp::doctor
