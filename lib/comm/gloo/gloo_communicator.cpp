#include "comm/gloo/gloo_communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstdint>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>
#include <vector>

#include "base/util/error.h"
#include "base/util/limits.h"
#include "comm/api/coded_exchange.h"
#include "comm/api/connect.h"
#include "comm/api/memory_operations.h"
#include "comm/gloo/gloo_exchange.h"

namespace fsdp::comm {
namespace {

/// Seeds of tags; the collectives of c10d have tags of their own.
enum Tag : uint64_t { kShiftTag, kAllGatherTag, kReduceScatterTag, kCodedGatherTag, kCodedReduceTag };

/// A view that does not own the memory: a thread of gloo keeps its tensors for some time after wait() has
/// returned, and would otherwise keep memory that has been freed by then.
at::Tensor borrowed(const at::Tensor& tensor) {
  FSDP_CHECK(tensor.is_contiguous());
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.options());
}

at::Tensor borrowed_bytes(const at::Tensor& tensor) { return borrowed(tensor).view(at::kByte); }

/// Collectives are complete at the call. Tensors travel as bytes where no arithmetic is done on the way,
/// because gloo knows fewer element types than the toolkit.
class GlooCommunicator final : public Communicator {
 public:
  GlooCommunicator(GlooPlace place, GroupIdentity identity, std::string prefix)
      : place_(std::move(place)), identity_(std::move(identity)), keys_(std::move(prefix)) {}

  ~GlooCommunicator() override {
    // The destructor of a group with a lost peer may never return; the process is about to end anyway.
    if (failed_) (void)process_group_.release();
  }

  /// Collective over the members.
  void connect() {
    process_group_ = connect_gloo(place_, keys_.of_group(), rank(), world_size());
    exchange_ = std::make_unique<GlooExchange>(process_group_, place_.is_broken_off);
    coded_ = std::make_unique<CodedExchange>(*exchange_, rank(), world_size());
  }

  [[noreturn]] void fail(const std::string& description, const std::string& cause) {
    failed_ = true;
    FailureSight sight{.timeout = says_timeout(cause), .what = description, .cause = first_line(cause)};
    sight.closed = !sight.timeout;
    fail_group(identity_, description,
               share_failure(
                   place_.store, keys_.of_group(), identity_, sight, [] {}, place_.timeout));
  }

  int rank() const override { return identity_.rank; }
  int world_size() const override { return identity_.size(); }
  std::string backend_name() const override { return "gloo"; }

  WorkPtr all_gather(const at::Tensor& output, const at::Tensor& input, const CallSite& site) override {
    check_whole(output, input);
    const at::Tensor flat = output.view({-1});
    const auto part_of = [&](int rank) { return flat.narrow(0, rank * input.numel(), input.numel()); };
    const at::Tensor own = part_of(rank());
    if (own.data_ptr() != input.data_ptr()) std::memmove(own.data_ptr(), input.data_ptr(), own.nbytes());
    return transfer("all_gather", site, [&] {
      const int tag = transfer_tag(kAllGatherTag, input);
      exchange_->swap_with_all(rank(), world_size(), tag, part_of, [&](int) { return own; });
    });
  }

  WorkPtr reduce_scatter(const at::Tensor& output, const at::Tensor& input, const CallSite& site) override {
    check_whole(input, output);
    // c10d's gloo reduce-scatter is a whole all-reduce; exchanging the parts moves half the bytes.
    const at::Tensor flat = input.view({-1});
    const at::Tensor received = scratch(received_, (world_size() - 1) * output.numel(), output.scalar_type());
    const int64_t numel = output.numel();
    std::vector<at::Tensor> parts;
    for (int other = 0; other < world_size(); ++other) {
      parts.push_back(other == rank() ? flat.narrow(0, other * numel, numel)
                                      : received.narrow(0, (other - (other > rank())) * numel, numel));
    }
    transfer("reduce_scatter", site, [&] {
      exchange_->swap_with_all(
          rank(), world_size(), transfer_tag(kReduceScatterTag, output),
          [&](int other) { return parts[static_cast<size_t>(other)]; },
          [&](int other) { return flat.narrow(0, other * numel, numel); });
    });
    sum_in_rank_order(output.view({-1}), parts);
    return done_work();
  }

  WorkPtr all_reduce(const at::Tensor& tensor, ReduceOp op, const CallSite& site) override {
    at::Tensor wide = sums_in_float(tensor.scalar_type()) ? tensor.to(at::kFloat) : tensor;
    run("all_reduce", site, {wide}, [&](c10d::ProcessGroupGloo& gloo) {
      std::vector<at::Tensor> tensors{borrowed(wide)};
      c10d::AllreduceOptions options;
      options.reduceOp = op == ReduceOp::kSum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX;
      return gloo.allreduce(tensors, options);
    });
    if (!wide.is_same(tensor)) tensor.copy_(wide);
    return done_work();
  }

  WorkPtr broadcast(const at::Tensor& tensor, int root, const CallSite& site) override {
    return run("broadcast", site, {tensor}, [&](c10d::ProcessGroupGloo& gloo) {
      std::vector<at::Tensor> tensors{borrowed_bytes(tensor)};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      return gloo.broadcast(tensors, options);
    });
  }

  WorkPtr shift(const at::Tensor& output, const at::Tensor& input, const CallSite& site) override {
    check_shift(output, input, site);
    if (input.numel() == 0) return done_work();
    return transfer("shift", site, [&] {
      const int tag = transfer_tag(kShiftTag, input);
      Exchange::Transfer received;
      std::exception_ptr lost;
      try {
        received = exchange_->receive(previous_rank(), tag, output);
      } catch (const std::exception&) {
        lost = std::current_exception();  // the next rank waits for this one's tensor all the same
      }
      const Exchange::Transfer sent = exchange_->send(next_rank(), tag, input);
      if (lost) std::rethrow_exception(lost);
      exchange_->wait(received);
      exchange_->wait(sent);
    });
  }

  WorkPtr coded_all_gather(const at::Tensor& output, const at::Tensor& input, const CodingPtr& coding,
                           const CallSite& site) override {
    check_whole(output, input);
    const int64_t numel = input.numel(), bytes = coding->bytes(numel);
    const CodedPieces pieces(coding->type, numel);
    const at::Tensor codes = scratch(codes_, world_size() * bytes, at::kByte);
    const auto code = [&](int member, int64_t piece) {
      return pieces.of_bytes(codes.narrow(0, member * bytes, bytes), piece);
    };
    return transfer("all_gather", site, [&] {
      coded_->all_gather({.tag = transfer_tag(kCodedGatherTag, input),
                          .input = input,
                          .coding = coding,
                          .place = code,
                          .take = [&](int member, int64_t piece) {
                            const at::Tensor part = output.view({-1}).narrow(0, member * numel, numel);
                            decode(coding->type, code(member, piece), pieces.of_values(part, piece));
                          }});
    });
  }

  WorkPtr coded_reduce_scatter(const at::Tensor& output, const at::Tensor& input, const CodingPtr& coding,
                               const FinishSums& finish, const CallSite& site) override {
    check_whole(input, output);
    const int64_t numel = output.numel();
    return transfer("reduce_scatter", site, [&] {
      coded_->reduce_scatter(
          {.tag = transfer_tag(kCodedReduceTag, output),
           .output = output,
           .coding = coding,
           .finish = finish,
           .part = [&](int member) { return input.view({-1}).narrow(0, member * numel, numel); }});
    });
  }

  void barrier(const CallSite& site) override {
    at::Tensor token = at::empty({1}, at::kFloat).zero_();
    run("barrier", site, {token}, [&](c10d::ProcessGroupGloo& gloo) {
      std::vector<at::Tensor> tensors{token};
      return gloo.allreduce(tensors);
    });
  }

  std::shared_ptr<Communicator> new_group(const std::string& name, const std::vector<int>& ranks) override {
    GroupIdentity identity = identity_.subgroup(name, ranks);
    const std::string prefix = keys_.next(name, identity);
    return make_gloo_group(place_, std::move(identity), prefix);
  }

 private:
  /// `tensors`: those that the collective reads and writes.
  template <typename Issue>
  WorkPtr run(const char* op, const CallSite& site, const std::vector<at::Tensor>& tensors,
              const Issue& issue) {
    return transfer(op, site, [&] {
      const c10::intrusive_ptr<c10d::Work> work = issue(*process_group_);
      place_.is_broken_off ? wait_until_broken_off(work, tensors) : static_cast<void>(work->wait());
    });
  }

  template <typename Body>
  WorkPtr transfer(const char* op, const CallSite& site, const Body& body) {
    try {
      body();
    } catch (const std::exception& error) {
      fail(described(op, site), error.what());
    }
    return done_work();
  }

  void wait_until_broken_off(const c10::intrusive_ptr<c10d::Work>& work,
                             const std::vector<at::Tensor>& tensors) {
    while (!work->isCompleted()) {
      try {
        work->wait(kLookForBreak);
      } catch (const std::exception&) {
        if (work->isCompleted() || !place_.is_broken_off()) continue;
        // gloo cannot end a collective before its time-out, and uses this memory until then.
        util::start_thread([group = process_group_, work, tensors]() mutable {
          try {
            work->wait();
          } catch (const std::exception&) {
            // No caller waits for this work any more.
          }
          (void)group.release();
        }).detach();
        throw std::runtime_error(kBrokenOff);
      }
    }
    work->wait();
  }

  const GlooPlace place_;
  const GroupIdentity identity_;
  SubgroupKeys keys_;  ///< prefixes in the store
  c10::intrusive_ptr<c10d::ProcessGroupGloo> process_group_;
  std::unique_ptr<GlooExchange> exchange_;  ///< over the same connections
  std::unique_ptr<CodedExchange> coded_;    ///< over exchange_
  bool failed_ = false;
  at::Tensor received_, codes_;  ///< scratch
};

}  // namespace

std::unique_ptr<Communicator> make_gloo_communicator(const LaunchEnvironment& environment,
                                                     const CommOptions& options, RunStore store) {
  if (!store) store = join_run_store(environment, options.timeout());
  const GlooPlace place = gloo_place(environment, options, std::move(store));
  auto communicator = std::make_unique<GlooCommunicator>(place, run_identity(environment), "world");
  try {
    communicator->connect();
  } catch (const std::exception& error) {
    std::string text = error.what();
    util::fail(says_timeout(text) ? ErrorKind::kTimeout : ErrorKind::kPeerLost, "rank ", environment.rank,
               " could not connect to its ", environment.world_size - 1, " peers from address ",
               place.address, ": ", first_line(text),
               " (GLOO_SOCKET_IFNAME chooses another network interface)");
  }
  return communicator;
}

std::unique_ptr<Communicator> connect_over_gloo(RunToConnect run) {
  return make_gloo_communicator(run.environment, run.options, std::move(run.store));
}

std::unique_ptr<Communicator> make_gloo_group(const GlooPlace& place, GroupIdentity identity,
                                              const std::string& prefix) {
  auto communicator = std::make_unique<GlooCommunicator>(place, std::move(identity), prefix);
  try {
    communicator->connect();
  } catch (const std::exception& error) {
    communicator->fail("connecting", error.what());
  }
  return communicator;
}

}  // namespace fsdp::comm
