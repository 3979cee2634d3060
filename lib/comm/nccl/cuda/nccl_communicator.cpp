#include "comm/nccl/nccl_communicator.h"

#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/env.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <future>
#include <iostream>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>
#include <vector>

#include "base/device/cuda.h"
#include "base/util/error.h"
#include "comm/nccl/collective_guard.h"

namespace fsdp::comm {
namespace {

using std::chrono::milliseconds;
using ProcessGroup = c10::intrusive_ptr<c10d::ProcessGroupNCCL>;

constexpr milliseconds kEndPatience{5000};  ///< limit for NCCL to shut a group down

/// Sets the variables that c10d reads when it makes a group. Values set by the user are kept, except where
/// they would make a failure end the process instead of being an error.
void set_up_c10d(milliseconds timeout) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout).count();
  // Mode CleanUpOnly: the watchdog aborts collectives that have failed or are late. It does not throw, which
  // would end the process.
  c10::utils::set_env("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2");
  c10::utils::set_env("TORCH_NCCL_BLOCKING_WAIT", "0");
  // An error of CUDA does not end the process there; the computing thread gets it too.
  c10::utils::set_env("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0", false);
  // The watchdog aborts at once: no time for dumps of the flight recorder, which is off.
  c10::utils::set_env("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "0", false);
  c10::utils::set_env("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", false);
  c10::utils::set_env("TORCH_NCCL_TRACE_BUFFER_SIZE", "0", false);
  // If the watchdog is stuck in CUDA or NCCL, only ending the process helps.
  const std::string heartbeat = std::to_string(std::max<int64_t>(seconds, 30));
  c10::utils::set_env("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", heartbeat.c_str(), false);
  configure_c10d();
}

/// Runs `body` in a separate thread and returns whether it ended in time; throws its exception. A late thread
/// is abandoned. A thread in time has ended on return: it may hold the last reference to a group, whose
/// threads must end before the process does.
bool ends_within(milliseconds limit, std::function<void()> body) {
  std::packaged_task<void()> task(std::move(body));
  std::future<void> ended = task.get_future();
  std::thread thread(std::move(task));
  if (ended.wait_for(limit) != std::future_status::ready) {
    thread.detach();
    return false;
  }
  thread.join();
  ended.get();
  return true;
}

/// Makes the process end without the destructors of static objects, which abandoned threads still use: c10d's
/// watchdog would abort the process, and its exit code would be lost.
void end_without_destructors() {
  static std::once_flag once;
  std::call_once(once, [] {
    ::on_exit(
        [](int code, void*) {
          std::cout.flush();
          std::fflush(nullptr);
          ::_exit(code);
        },
        nullptr);
  });
}

/// The state of the collective according to c10d's watchdog. The Work itself would keep its tensors alive.
std::function<CollectiveGuard::Outcome()> outcome_of(c10d::Work& work) {
  return [result = work.getFutureResult()] {
    using Outcome = CollectiveGuard::Outcome;
    if (!result->completed()) return Outcome::kUnderWay;
    switch (static_cast<c10d::WorkResult>(result->constValue().toInt())) {
      case c10d::WorkResult::SUCCESS:
        return Outcome::kDone;
      case c10d::WorkResult::TIMEOUT:
        return Outcome::kTimedOut;
      default:
        return Outcome::kFailed;
    }
  };
}

/// A collective, from before it is issued. Thread-safe.
class GuardedCollective {
 public:
  using Look = std::function<CollectiveGuard::Outcome()>;

  void issued(Look look) {
    std::lock_guard lock(mutex_);
    look_ = std::move(look);
  }
  void given_up() {
    issued([] { return CollectiveGuard::Outcome::kDone; });
  }
  CollectiveGuard::Outcome outcome() {
    std::lock_guard lock(mutex_);
    return look_ ? look_() : CollectiveGuard::Outcome::kUnderWay;
  }

 private:
  std::mutex mutex_;
  Look look_;
};

class NcclWork final : public Work {
 public:
  explicit NcclWork(std::shared_ptr<CollectiveGuard> guard) : guard_(std::move(guard)) {}
  /// Issuing the collective made the stream wait for it.
  void wait() override { guard_->check(); }

 private:
  std::shared_ptr<CollectiveGuard> guard_;
};

/// A view for collectives without arithmetic: NCCL knows fewer element types than the toolkit.
at::Tensor as_bytes(const at::Tensor& tensor) {
  FSDP_CHECK(tensor.is_cuda() && tensor.is_contiguous());
  return tensor.view({-1}).view(at::kByte);
}

/// The guards of all groups of a run on this rank.
using Guards = std::vector<std::weak_ptr<CollectiveGuard>>;

class NcclCommunicator final : public Communicator {
 public:
  /// `connects`: at once, so that refusals come at the start of the run. Otherwise in the first collective.
  NcclCommunicator(const NcclPlace& place, std::string prefix, std::shared_ptr<Guards> guards, bool connects)
      : place_(place), keys_(std::move(prefix)), guards_(std::move(guards)) {
    auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
    options->timeout = place.timeout;
    options->group_name = keys_.of_group();
    for (int member : place.identity.ranks)
      options->global_ranks_in_group.push_back(static_cast<uint64_t>(member));
    group_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(
        c10::make_intrusive<c10d::PrefixStore>(keys_.of_group(), place.store), rank(), world_size(),
        std::move(options));
    guard_ = std::make_shared<CollectiveGuard>(CollectiveGuard::Options{
        .identity = place.identity,
        .store = place.store,
        .prefix = keys_.of_group() + "/failure",
        .timeout = place.timeout,
        .abort = [group = group_] { ends_within(kEndPatience, [group] { group->abort(); }); },
        .activity = place.activity});
    std::erase_if(*guards_, [](const auto& guard) { return guard.expired(); });
    guards_->push_back(guard_);
    if (connects) connect();
  }

  /// A failed group is not shut down: that may wait for lost ranks, and the process is about to end anyway.
  ~NcclCommunicator() override {
    bool down = false;
    if (!guard_->failed() && std::uncaught_exceptions() == 0) {
      try {
        down = ends_within(kEndPatience, [group = group_] { group->shutdown(); });
      } catch (const std::exception&) {
        // Treated like an earlier failure.
      }
    }
    if (!down) leave();
  }

  int rank() const override { return place_.identity.rank; }
  int world_size() const override { return place_.identity.size(); }
  std::string backend_name() const override { return "nccl"; }
  void check() const override {
    for (const auto& each : *guards_) {
      if (const auto guard = each.lock()) guard->check();
    }
  }

  WorkPtr all_gather(const at::Tensor& output, const at::Tensor& input, const CallSite& site) override {
    check_whole(output, input);
    return run("all_gather", site, [&] {
      at::Tensor out = as_bytes(output), in = as_bytes(input);
      return group_->_allgather_base(out, in);
    });
  }

  WorkPtr reduce_scatter(const at::Tensor& output, const at::Tensor& input, const CallSite& site) override {
    check_whole(input, output);
    return run("reduce_scatter", site, [&] {
      at::Tensor out = output, in = input;
      return group_->_reduce_scatter_base(out, in);
    });
  }

  WorkPtr all_reduce(const at::Tensor& tensor, ReduceOp op, const CallSite& site) override {
    return run("all_reduce", site, [&] {
      std::vector<at::Tensor> tensors{tensor};
      c10d::AllreduceOptions options;
      options.reduceOp = op == ReduceOp::kSum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX;
      return group_->allreduce(tensors, options);
    });
  }

  WorkPtr broadcast(const at::Tensor& tensor, int root, const CallSite& site) override {
    FSDP_CHECK(root >= 0 && root < world_size(), "broadcast of ", site.unit, " from rank ", root);
    return run("broadcast", site, [&] {
      std::vector<at::Tensor> tensors{as_bytes(tensor)};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      return group_->broadcast(tensors, options);
    });
  }

  WorkPtr shift(const at::Tensor& output, const at::Tensor& input, const CallSite& site) override {
    check_shift(output, input, site);
    if (input.numel() == 0) return std::make_unique<NcclWork>(guard_);
    // A single operation for NCCL and for c10d's watchdog. An all-to-all would connect all ranks.
    return run("shift", site, [&] {
      std::vector<at::Tensor> out{as_bytes(output)}, in{as_bytes(input)};
      group_->startCoalescing();
      group_->send(in, next_rank(), 0);
      group_->recv(out, previous_rank(), 0);
      return group_->endCoalescing();
    });
  }

  WorkPtr all_to_all(const at::Tensor& output, const at::Tensor& input, const CallSite& site) override {
    return run("all_to_all", site, [&] {
      at::Tensor out = as_bytes(output), in = as_bytes(input);
      std::vector<int64_t> equal_parts;
      return group_->alltoall_base(out, in, equal_parts, equal_parts);
    });
  }

  void barrier(const CallSite& site) override {
    std::vector<at::Tensor> token{at::zeros({1}, on_gpu(at::kFloat))};
    guard_->finish(issue("barrier", site, [&] { return group_->allreduce(token); }));
  }

  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    return at::empty({numel}, on_gpu(dtype));
  }

  std::shared_ptr<Communicator> subgroup(const std::string& name, const std::vector<int>& ranks) override {
    // A group of one needs a communicator for GPU tensors too, so only a group of all is reused.
    if (auto existing = existing_subgroup(name, ranks); existing.get() == this) return existing;
    return new_group(name, ranks);
  }
  std::shared_ptr<Communicator> new_group(const std::string& name, const std::vector<int>& ranks) override {
    NcclPlace place = place_;
    place.identity = place_.identity.subgroup(name, ranks);
    return std::make_shared<NcclCommunicator>(place, keys_.next(name, place.identity), guards_,
                                              /*connects=*/false);
  }

 private:
  at::TensorOptions on_gpu(at::ScalarType dtype) const {
    return at::TensorOptions().dtype(dtype).device(at::kCUDA, static_cast<c10::DeviceIndex>(place_.device));
  }

  /// The group's destructor would wait for its threads.
  void leave() {
    (void)ProcessGroup(group_).release();
    end_without_destructors();
  }

  void connect() {
    is_connected_ = true;
    const std::string what = "connecting over NCCL";
    bool in_time = false;
    try {
      in_time = ends_within(place_.timeout, [group = group_, device = on_gpu(at::kByte).device()] {
        group->eagerConnectSingleDevice(device);
      });
    } catch (const std::exception& error) {
      const std::string cause = nccl_cause(error.what());
      leave();
      if (cause.find("Duplicate GPU") != std::string::npos || cause.starts_with("ncclInvalidUsage")) {
        util::fail(ErrorKind::kUsage, what, " failed on rank ", place_.identity.global_rank(),
                   place_.identity.shown(), ": each process needs a GPU of its own, but NCCL reports ", cause,
                   "; start no more processes per host than it has GPUs, set comm.backend to gloo, or set "
                   "NCCL_HOSTID to another value on each process");
      }
      guard_->fail(what, {.timeout = says_timeout(cause), .cause = cause});
    }
    if (in_time) return;
    leave();
    guard_->fail(what, {.timeout = true, .cause = "NCCL_DEBUG=INFO shows how far it got"});
  }

  template <typename Issue>
  int64_t issue(const char* op, const CallSite& site, const Issue& collective) {
    guard_->check();
    if (!is_connected_) connect();
    // Before it is issued: the first collective waits here until all ranks have connected.
    const auto guarded = std::make_shared<GuardedCollective>();
    const int64_t number = guard_->add(op, site, [guarded] { return guarded->outcome(); });
    try {
      c10::intrusive_ptr<c10d::Work> work = collective();
      work->wait();  // the stream's, not the caller's
      guarded->issued(outcome_of(*work));
      return number;
    } catch (const c10::Error& error) {
      const std::string cause = nccl_cause(error.what());
      // A failed kernel of this rank is reported by the next launch.
      if (first_line(error.what()).find("NCCL") == std::string::npos) {
        guarded->given_up();
        util::fail(ErrorKind::kUnexpected, described(op, site), " failed on rank ",
                   place_.identity.global_rank(), place_.identity.shown(), ": ", cause);
      }
      guard_->fail(described(op, site), {.timeout = says_timeout(cause), .cause = cause});
    } catch (...) {
      guarded->given_up();
      throw;
    }
  }

  template <typename Issue>
  WorkPtr run(const char* op, const CallSite& site, const Issue& collective) {
    issue(op, site, collective);
    return std::make_unique<NcclWork>(guard_);
  }

  NcclPlace place_;
  SubgroupKeys keys_;  ///< prefixes in the store
  ProcessGroup group_;
  std::shared_ptr<CollectiveGuard> guard_;
  std::shared_ptr<Guards> guards_;
  bool is_connected_ = false;
};

}  // namespace

std::shared_ptr<Communicator> make_nccl_communicator(const NcclPlace& place) {
  util::set_cuda_device(place.device);
  set_up_c10d(place.timeout);
  return std::make_shared<NcclCommunicator>(place, "nccl", std::make_shared<Guards>(), /*connects=*/true);
}

}  // namespace fsdp::comm
