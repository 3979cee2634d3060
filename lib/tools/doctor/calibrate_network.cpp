#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "comm/api/memory_operations.h"
#include "comm/codes/link_codes.h"
#include "tools/doctor/calibrate.h"
#include "tools/doctor/stopwatch.h"

namespace fsdp::doctor {
namespace {

using comm::Communicator;
using simulate::Link;
using simulate::NetworkTable;

/// Numbers of 4-byte elements in a rank's part. kManyOfLink is the part of a usual unit.
constexpr int64_t kFew = 256, kManyOfLink = int64_t{1} << 20, kMany = int64_t{4} << 20;
constexpr int64_t kWidth = 256;  ///< width of the matrix products that occupy cores
constexpr int kLeastTimes = 3, kMostTimes = 100;
constexpr double kSecondsEach = 0.4;
constexpr auto kUntilCoresChange =
    std::chrono::milliseconds(20);  ///< sleep after which the scheduler chooses cores anew

/// Like steady_seconds(), for a collective that all ranks must run equally often.
double seconds_of(Communicator& group, const std::function<void()>& run) {
  const auto timed = [&run] {
    const double begin = wall_seconds();
    run();
    return wall_seconds() - begin;
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

/// Tensors for collectives of n elements per rank, allocated like the tensors of units.
struct CollectiveTensors {
  at::Tensor part, whole;

  CollectiveTensors(Communicator& group, int64_t n)
      : part(group.allocate(n, at::kFloat)), whole(group.allocate(n * group.world_size(), at::kFloat)) {
    part.fill_(1);
    whole.fill_(1);
  }
};

double all_gather_seconds(Communicator& group, int64_t n) {
  const CollectiveTensors tensors(group, n);
  return seconds_of(
      group, [&] { group.all_gather(tensors.whole, tensors.part, {.unit = "calibration"})->synchronize(); });
}

double reduce_scatter_seconds(Communicator& group, int64_t n) {
  const CollectiveTensors tensors(group, n);
  return seconds_of(group, [&] {
    group.reduce_scatter(tensors.part, tensors.whole, {.unit = "calibration"})->synchronize();
  });
}

/// Seconds of an all-reduce of a few numbers, like the loss of a step.
double all_reduce_seconds(Communicator& group) {
  const at::Tensor few = at::full({4}, 1, at::kFloat);
  return seconds_of(
      group, [&] { group.all_reduce(few, comm::ReduceOp::kMax, {.unit = "calibration"})->synchronize(); });
}

/// Seconds to hand a task to the communication thread and back.
double base_seconds(Communicator& group) {
  return steady_seconds([&] { group.enqueue([] {})->synchronize(); });
}

double copy_rate() {
  const at::Tensor from = at::full({kMany}, 1, at::kFloat), to = at::empty({kMany}, at::kFloat);
  const double bytes = static_cast<double>(from.nbytes());
  return bytes / steady_seconds([&] { at::Tensor(to).copy_(from); });
}

/// Bytes per second at which the tensors of this number of ranks are added up.
double sum_rate(int ranks) {
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < ranks; ++rank) parts.push_back(at::full({kMany / ranks}, 1, at::kFloat));
  const at::Tensor sum = at::empty_like(parts.front());
  return ranks * static_cast<double>(sum.nbytes()) /
         steady_seconds([&] { comm::sum_in_rank_order(sum, parts); });
}

/// Measures the codes of quantized links, with the stochastic rounding of sums, which takes longer than that
/// of gathers.
void measure_codes(NetworkTable& network) {
  const at::Tensor numbers = at::full({kMany}, 1, at::kFloat);
  constexpr comm::LinkType kType = comm::LinkType::kInt8;
  const at::Tensor codes =
      at::empty({comm::link_bytes(kType, kMany, sizeof(float))}, numbers.options().dtype(at::kByte));
  const auto bytes = static_cast<double>(numbers.nbytes());
  network.encode_bytes_per_second =
      bytes / steady_seconds([&] { comm::encode(kType, numbers, codes, {.seed = 1}); });
  network.decode_bytes_per_second = bytes / steady_seconds([&] { comm::decode(kType, codes, numbers); });
}

double part_bytes(int64_t elements = kMany) { return 4 * static_cast<double>(elements); }

/// Computes in a background thread during its lifetime.
class Computing {
 public:
  Computing() : thread_([this] { compute(); }) {}
  ~Computing() {
    over_ = true;
    thread_.join();
  }

  /// The thread's work per second of `run`.
  struct Speed {
    double products, core_seconds;
  };
  Speed speed_beside(const std::function<void()>& run) const {
    const int64_t products = products_;
    const double begin = wall_seconds(), cores = core_seconds_;
    run();
    const double seconds = wall_seconds() - begin;
    return {static_cast<double>(products_ - products) / seconds, (core_seconds_ - cores) / seconds};
  }

 private:
  void compute() {
    const at::Tensor x = at::full({kWidth, kWidth}, 1, at::kFloat);
    at::Tensor y = at::empty_like(x);
    for (; !over_; ++products_) {
      at::mm_out(y, x, x);
      core_seconds_ = thread_seconds();
    }
  }

  std::atomic<bool> over_ = false;
  std::atomic<int64_t> products_ = 0;
  std::atomic<double> core_seconds_ = 0;
  std::thread thread_;
};

/// Measures barriers, copies and sums of ranks that share memory.
void measure_shared_memory(Communicator& group, NetworkTable& network, double ranks_on_core) {
  const double ranks = group.world_size();
  const double alone = all_reduce_seconds(group);
  network.inside.latency_seconds = std::max(0.0, alone - network.base_seconds);
  const double fixed = network.base_seconds + 2 * network.inside.latency_seconds;
  const auto rate = [&](double seconds) {
    return ranks_on_core * ranks * part_bytes() / std::max(seconds - fixed, 1e-6);
  };
  network.copy_bytes_per_second = rate(all_gather_seconds(group, kMany));
  network.sum_bytes_per_second = rate(reduce_scatter_seconds(group, kMany));
  const Computing computing;
  network.inside.latency_beside_compute = std::max(0.0, all_reduce_seconds(group) - alone);
}

/// Measures the mean of queued gathers, like the gathers of a step. For a single gather a rank only knows
/// when its own part is over, while steps also wait for threads that are scheduled late.
class QueuedGathers {
 public:
  explicit QueuedGathers(Communicator& group) : group_(group), tensors_(group, kManyOfLink) {
    const double one = seconds_of(group, [this] { gather()->synchronize(); });
    at::Tensor times = at::full({1}, std::clamp(std::ceil(kSecondsEach / one), 4.0, 400.0), at::kDouble);
    group.all_reduce(times, comm::ReduceOp::kMax, {.unit = "calibration"})->synchronize();
    times_ = static_cast<int>(times.item<double>());
  }

  double mean_seconds() const {
    std::vector<std::unique_ptr<comm::Work>> works;
    const double begin = wall_seconds();
    for (int i = 0; i < times_; ++i) works.push_back(gather());
    for (const std::unique_ptr<comm::Work>& work : works) work->synchronize();
    group_.barrier({.unit = "calibration"});
    return (wall_seconds() - begin) / times_;
  }

 private:
  std::unique_ptr<comm::Work> gather() const {
    return group_.all_gather(tensors_.whole, tensors_.part, {.unit = "calibration"});
  }

  Communicator& group_;
  const CollectiveTensors tensors_;
  int times_ = 0;
};

/// The mean of gathers of few elements in short queues. The scheduler chooses cores anew between queues,
/// because the time of a gather beside compute depends on whether its thread may run before the compute has
/// used up its time slice.
double mean_seconds_of_few(Communicator& group) {
  constexpr int kQueue = 10, kQueues = 60;
  const CollectiveTensors tensors(group, kFew);
  double seconds = 0;
  for (int i = 0; i < kQueues; ++i) {
    std::this_thread::sleep_for(kUntilCoresChange);
    group.barrier({.unit = "calibration"});
    std::vector<std::unique_ptr<comm::Work>> works;
    const double begin = wall_seconds();
    for (int j = 0; j < kQueue; ++j) {
      works.push_back(group.all_gather(tensors.whole, tensors.part, {.unit = "calibration"}));
    }
    for (const std::unique_ptr<comm::Work>& work : works) work->synchronize();
    seconds += wall_seconds() - begin;
  }
  return seconds / kQueues / kQueue;
}

/// Seconds of a gather of many elements, alone and beside compute, and seconds of a core that it takes.
struct LinkSample {
  double alone = 0, beside = 0, of_core = 0;
};

LinkSample sample_link(Communicator& group, const QueuedGathers& many) {
  LinkSample sample;
  const double busy = processor_seconds(), begin = wall_seconds();
  sample.alone = many.mean_seconds();
  const double own = (processor_seconds() - busy) / (wall_seconds() - begin) * sample.alone;
  const Computing computing;
  group.barrier({.unit = "calibration"});
  const Computing::Speed alone = computing.speed_beside(
      [] { std::this_thread::sleep_for(std::chrono::duration<double>(kSecondsEach)); });
  const Computing::Speed slowed = computing.speed_beside([&] { sample.beside = many.mean_seconds(); });
  // The cost is what compute loses, because the kernel's work in transfers is not part of this process's
  // time. If ranks take turns on a core, they also lose time to each other, and only the process's own time
  // is known.
  constexpr double kCoreOfItsOwn = 0.9;
  const double lost = (alone.products - slowed.products) / alone.products * alone.core_seconds;
  sample.of_core = alone.core_seconds > kCoreOfItsOwn ? lost * sample.beside : own;
  return sample;
}

/// Measures a link to which all ranks send at once. A small all-gather takes `steps` consecutive messages.
Link measure_link(Communicator& group, const NetworkTable& network, double steps) {
  const double bytes = (group.world_size() - 1) * part_bytes(kManyOfLink);
  Link link;
  const double few_alone = all_gather_seconds(group, kFew);
  link.latency_seconds = std::max(0.0, few_alone - network.base_seconds) / steps;
  if (group.backend_name() == "gloo") {
    const double ring = all_reduce_seconds(group) - network.base_seconds;
    link.ring_latency_seconds = std::max(0.0, ring) / (2 * (group.world_size() - 1));
  }
  // A single sample depends on the cores on which threads happen to run.
  constexpr int kSamples = 7;
  const QueuedGathers many(group);
  std::vector<LinkSample> samples;
  for (int i = 0; i < kSamples; ++i) samples.push_back(sample_link(group, many));
  const auto median = [&samples](const auto& of) {
    std::ranges::nth_element(samples, samples.begin() + kSamples / 2, {}, of);
    return of(samples[kSamples / 2]);
  };
  const double gather = median([](const LinkSample& each) { return each.alone; });
  link.bytes_per_second =
      bytes / std::max(gather - network.base_seconds - steps * link.latency_seconds, 1e-6);
  const double few_in_queues = mean_seconds_of_few(group);
  const auto few_beside_compute = [&group] {
    const Computing computing;
    return mean_seconds_of_few(group);
  };
  link.latency_beside_compute = std::max(0.0, few_beside_compute() - few_in_queues) / steps;
  link.speed_beside_compute =
      std::clamp(median([](const LinkSample& each) { return each.alone / each.beside; }),
                 simulate::kLeastSpeedBesideCompute, 1.0);
  link.core_seconds_per_byte =
      std::max(0.0, median([](const LinkSample& each) { return each.of_core; })) / bytes;
  return link;
}

/// Number of consecutive messages of a small all-gather, as in tools/simulate/collective_cost.cpp.
double steps_of(const Communicator& group) {
  return group.backend_name().ends_with("mpi") ? std::max(1.0, std::ceil(std::log2(group.world_size()))) : 1;
}

/// The mean without the lowest and the highest tenth, which other load may have disturbed.
double trimmed_mean(std::vector<double> values) {
  std::ranges::sort(values);
  const auto cut = static_cast<std::ptrdiff_t>(values.size() / 10);
  return std::accumulate(values.begin() + cut, values.end() - cut, 0.0) /
         static_cast<double>(values.size() - 2 * cut);
}

/// Core seconds that an all-gather takes from the compute beside it, because its thread needs a core and
/// ranks wait for each other.
double core_seconds(Communicator& group) {
  constexpr int kCollectives = 10, kRounds = 51;
  constexpr int64_t kElements = int64_t{16} << 10;
  constexpr double kSecondsBeside = 5e-3;  // compute time of a layer, in which its collectives are hidden
  constexpr double kTurns = 1.2;           // ranks per core from which ranks take turns
  const CollectiveTensors tensors(group, kElements);
  const at::Tensor x = at::full({kWidth, kWidth}, 1, at::kFloat), y = at::empty_like(x);
  const auto gather = [&] { return group.all_gather(tensors.whole, tensors.part, {.unit = "calibration"}); };
  const double product = steady_seconds([&] { at::mm_out(const_cast<at::Tensor&>(y), x, x); });
  const double beside = std::max(kSecondsBeside, 3 * seconds_of(group, [&] { gather()->synchronize(); }));
  at::Tensor products = at::full({1}, std::ceil(beside / product), at::kDouble);
  group.all_reduce(products, comm::ReduceOp::kMax, {.unit = "calibration"})->synchronize();
  struct Round {
    double wall, thread, process;  ///< seconds: wall time, CPU time of this thread and of all threads
  };
  const auto timed = [&](bool communicates) -> Round {
    std::this_thread::sleep_for(kUntilCoresChange);
    group.barrier({.unit = "calibration"});
    const Round begin{wall_seconds(), thread_seconds(), processor_seconds()};
    for (int i = 0; i < kCollectives; ++i) {
      const std::unique_ptr<comm::Work> work = communicates ? gather() : nullptr;
      for (int j = 0; j < products.item<double>(); ++j) at::mm_out(const_cast<at::Tensor&>(y), x, x);
      if (work) work->synchronize();
    }
    return {wall_seconds() - begin.wall, thread_seconds() - begin.thread,
            processor_seconds() - begin.process};
  };
  std::vector<double> longer, busier, ranks_on_core;
  for (int round = 0; round < kRounds; ++round) {
    const Round with = timed(true), without = timed(false);
    longer.push_back(with.wall - without.wall);
    busier.push_back(with.process - without.process);
    ranks_on_core.push_back(without.wall / without.thread);
  }
  std::ranges::nth_element(ranks_on_core, ranks_on_core.begin() + kRounds / 2);
  const double turns = std::max(1.0, ranks_on_core[kRounds / 2]);
  // The mean, because the cost of a single collective varies with the ranks' turns.
  const double lost = trimmed_mean(longer) / turns;
  // Ranks that take turns also wait for each other, and in a step part of that wait hides behind other waits.
  // The cost is therefore taken as the mean of the time lost and the CPU time added.
  const double taken = turns > kTurns ? (lost + trimmed_mean(busier)) / 2 : lost;
  return std::max(0.0, taken) / kCollectives;
}

/// Measures a link of NCCL. The latency is NCCL's model's, not measured.
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
  const double ranks_on_core = std::max(1.0, here * at::get_num_threads() / usable_cores());
  if (backend.starts_with("hierarchical")) {
    measure_shared_memory(*host(), network, ranks_on_core);
    const std::shared_ptr<Communicator> across = counterparts();
    network.between = network.slices = measure_link(*across, network, steps_of(*across));
  } else if (backend == "shm") {
    measure_shared_memory(communicator, network, ranks_on_core);
  } else {
    network.copy_bytes_per_second = copy_rate();
    network.sum_bytes_per_second = sum_rate(world);
    Link& link = here == world ? network.inside : network.between;
    link = measure_link(communicator, network, steps_of(communicator));
    network.slices = network.between;
  }
  network.core_seconds = core_seconds(communicator);
  measure_codes(network);
  return network;
}

}  // namespace fsdp::doctor
