#include "comm/threads/thread_communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <tuple>

#include "base/util/error.h"
#include "comm/api/memory_operations.h"
#include "comm/api/stream_communicator.h"

namespace fsdp::comm {
namespace {

/// The shared state of one group's threads: a slot per rank for the tensors of the current collective, and a
/// barrier that can be broken. Breaking a group breaks its subgroups.
class ThreadWorld {
 public:
  struct Slot {
    at::Tensor output, input;
    std::string description;
  };

  /// `ranks`: global ranks.
  explicit ThreadWorld(std::vector<int> ranks) : slots_(ranks.size()), ranks_(std::move(ranks)) {}

  int size() const { return static_cast<int>(slots_.size()); }
  Slot& slot(int rank) { return slots_[static_cast<size_t>(rank)]; }
  int global_rank(int rank) const { return ranks_[static_cast<size_t>(rank)]; }

  /// Waits for all ranks; throws when one of them has failed.
  void arrive_and_wait() {
    std::unique_lock lock(mutex_);
    throw_if_left();
    size_t round = round_;
    if (++arrived_ == slots_.size()) {
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
      return;
    }
    changed_.wait(lock, [&] { return round_ != round || left_.has_value(); });
    if (round_ == round) throw_if_left();
  }

  /// Notes that a global rank has ended, by an exception or (cause null) because its body returned: no rank
  /// may wait for it any more.
  void leave(int global_rank, const std::exception_ptr& cause) {
    std::lock_guard lock(mutex_);
    if (std::ranges::find(ranks_, global_rank) == ranks_.end()) return;
    if (!left_) left_ = global_rank;
    if (!cause_) cause_ = cause;
    gone_.push_back(global_rank);
    for (auto& [key, group] : groups_) group->leave(global_rank, cause);
    changed_.notify_all();
  }

  /// The `number`-th subgroup of these ranks under this name; the first rank to call makes it.
  std::shared_ptr<ThreadWorld> subgroup(const std::string& name, const std::vector<int>& ranks, int number) {
    std::lock_guard lock(mutex_);
    auto& group = groups_[{name, ranks, number}];
    if (!group) {
      std::vector<int> global_ranks;
      for (int rank : ranks) global_ranks.push_back(global_rank(rank));
      group = std::make_shared<ThreadWorld>(std::move(global_ranks));
      for (int rank : gone_) group->leave(rank, nullptr);
    }
    return group;
  }

  void rethrow_failure() {
    if (cause_) std::rethrow_exception(cause_);
  }

 private:
  void throw_if_left() {
    if (left_) util::fail(ErrorKind::kPeerLost, "rank ", *left_, " has left this world of threads");
  }

  std::vector<Slot> slots_;
  const std::vector<int> ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t arrived_ = 0;
  size_t round_ = 0;
  std::optional<int> left_;  ///< the first rank that left
  std::vector<int> gone_;
  std::exception_ptr cause_;
  std::map<std::tuple<std::string, std::vector<int>, int>, std::shared_ptr<ThreadWorld>> groups_;
};

/// Collectives complete at the call.
class ThreadCommunicator final : public Communicator, private CommonMemory {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadWorld> world, int rank) : world_(std::move(world)), rank_(rank) {}

  int rank() const override { return rank_; }
  int world_size() const override { return world_->size(); }
  std::string backend_name() const override { return "threads"; }

  WorkPtr all_gather(const at::Tensor& output, const at::Tensor& input, const CallSite& site) override {
    int64_t n = input.numel();
    FSDP_CHECK(output.numel() == n * world_size() && output.scalar_type() == input.scalar_type());
    return run("all_gather", output, input, site, [&] {
      for (int r = 0; r < world_size(); ++r) {
        const at::Tensor& theirs = world_->slot(r).input;
        FSDP_CHECK(theirs.numel() == n, "rank ", world_->global_rank(r), " gathers ", theirs.numel(),
                   " elements, this rank ", n);
        const bool is_theirs = r != rank_ && world_->slot(r).output.data_ptr() == output.data_ptr();
        at::Tensor part = output.narrow(0, r * n, n);
        if (!is_theirs && part.data_ptr() != theirs.data_ptr()) part.copy_(theirs);
      }
    });
  }

  WorkPtr reduce_scatter(const at::Tensor& output, const at::Tensor& input, const CallSite& site) override {
    int64_t n = output.numel();
    FSDP_CHECK(input.numel() == n * world_size() && output.scalar_type() == input.scalar_type());
    // The others read the input until all have their sums.
    at::Tensor sum = output.is_alias_of(input) ? at::empty_like(output) : output;
    run("reduce_scatter", output, input, site, [&] {
      std::vector<at::Tensor> parts;
      for (int r = 0; r < world_size(); ++r) {
        FSDP_CHECK(world_->slot(r).input.numel() == input.numel());
        parts.push_back(world_->slot(r).input.narrow(0, rank_ * n, n));
      }
      sum_in_rank_order(sum, parts);
    });
    if (!sum.is_same(output)) output.copy_(sum);
    return done_work();
  }

  WorkPtr all_reduce(const at::Tensor& tensor, ReduceOp op, const CallSite& site) override {
    at::Tensor result;
    run("all_reduce", tensor, tensor, site, [&] {
      std::vector<at::Tensor> parts;
      std::vector<const void*> pointers;
      for (int r = 0; r < world_size(); ++r) {
        FSDP_CHECK(world_->slot(r).input.sizes() == tensor.sizes());
        parts.push_back(world_->slot(r).input.contiguous());
        pointers.push_back(parts.back().data_ptr());
      }
      result = at::empty_like(parts[0]);
      reduce_in_rank_order(result.data_ptr(), pointers, result.numel(), result.scalar_type(), op);
    });
    tensor.copy_(result.view(tensor.sizes()));
    return done_work();
  }

  WorkPtr broadcast(const at::Tensor& tensor, int root, const CallSite& site) override {
    return run("broadcast", tensor, tensor, site, [&] {
      if (rank_ != root) tensor.copy_(world_->slot(root).input);
    });
  }

  WorkPtr shift(const at::Tensor& output, const at::Tensor& input, const CallSite& site) override {
    check_shift(output, input, site);
    return run("shift", output, input, site, [&] {
      const at::Tensor& theirs = world_->slot(previous_rank()).input;
      FSDP_CHECK(theirs.numel() == input.numel() && theirs.scalar_type() == input.scalar_type(), "rank ",
                 world_->global_rank(previous_rank()), " sends ", theirs.numel(), " elements, this rank ",
                 input.numel());
      output.view({-1}).copy_(theirs.view({-1}));
    });
  }

  WorkPtr all_to_all(const at::Tensor& output, const at::Tensor& input, const CallSite& site) override {
    const int64_t n = input.numel() / world_size();
    return run("all_to_all", output, input, site, [&] {
      for (int r = 0; r < world_size(); ++r) {
        const at::Tensor& theirs = world_->slot(r).input;
        FSDP_CHECK(theirs.numel() == input.numel(), "rank ", world_->global_rank(r), " sends ",
                   theirs.numel(), " elements, this rank ", input.numel());
        if (r != rank_) output.narrow(0, r * n, n).copy_(theirs.narrow(0, rank_ * n, n));
      }
    });
  }

  void barrier(const CallSite&) override { world_->arrive_and_wait(); }

  CommonMemory* common_memory() override { return this; }
  WorkPtr enqueue_with_memory(int64_t nbytes, const CallSite& site,
                              std::function<void(c10::DataPtr)> task) override {
    at::Tensor memory;
    if (rank_ == 0) memory = at::empty({nbytes}, at::TensorOptions().dtype(at::kByte));
    run("common memory", memory, memory, site, [&] { memory = world_->slot(0).output; });
    auto hold = std::make_unique<at::Tensor>(memory);
    void* data = memory.data_ptr();
    task({data, hold.release(), [](void* held) { delete static_cast<at::Tensor*>(held); }, at::kCPU});
    return done_work();
  }
  void reserve(int64_t) override {}

  std::shared_ptr<Communicator> new_group(const std::string& name, const std::vector<int>& ranks) override {
    auto own = std::lower_bound(ranks.begin(), ranks.end(), rank_) - ranks.begin();
    return std::make_shared<ThreadCommunicator>(world_->subgroup(name, ranks, groups_made_[{name, ranks}]++),
                                                static_cast<int>(own));
  }

 private:
  /// Publishes this rank's tensors, waits for all, calls `read`, and waits until all have read.
  template <typename Read>
  WorkPtr run(const char* op, const at::Tensor& output, const at::Tensor& input, const CallSite& site,
              const Read& read) {
    std::string description = concat(op, " of ", site.unit);
    world_->slot(rank_) = {output, input, description};
    world_->arrive_and_wait();
    for (int r = 0; r < world_size(); ++r) {
      FSDP_CHECK(world_->slot(r).description == description, "rank ", world_->global_rank(r), " calls ",
                 world_->slot(r).description, ", rank ", world_->global_rank(rank_), " calls ", description);
    }
    read();
    world_->arrive_and_wait();
    world_->slot(rank_) = {};  // keeps no tensor alive
    return done_work();
  }

  std::shared_ptr<ThreadWorld> world_;
  int rank_;
  std::map<std::pair<std::string, std::vector<int>>, int> groups_made_;
};

/// Finishes collectives without a wait(), because other ranks may wait for theirs.
void finish_collectives(Communicator& communicator) {
  try {
    communicator.enqueue([] {})->wait();
  } catch (const std::exception&) {
    // A failed collective whose result this rank never asked for is no failure of the rank.
  }
}

}  // namespace

void run_ranks_as_threads(int world_size, const std::function<void(Communicator&)>& body) {
  std::vector<int> ranks(static_cast<size_t>(world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  auto world = std::make_shared<ThreadWorld>(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([world, &body, rank] {
      auto communicator = make_queued_communicator(std::make_shared<ThreadCommunicator>(world, rank));
      std::exception_ptr cause;
      try {
        body(*communicator);
      } catch (...) {
        cause = std::current_exception();
      }
      if (!cause) finish_collectives(*communicator);
      // Before the queue is destroyed: its task may wait for other ranks, and they for this one.
      world->leave(rank, cause);
    });
  }
  for (std::thread& thread : threads) thread.join();
  world->rethrow_failure();
}

}  // namespace fsdp::comm
