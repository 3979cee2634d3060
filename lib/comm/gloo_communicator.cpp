#include "comm/gloo_communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <map>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "comm/failure_report.h"
#include "comm/rank_order_sum.h"
#include "comm/run_store.h"
#include "util/error.h"

namespace fsdp::comm {
namespace {

using util::ErrorKind;

/// The connections of one group of ranks, and what is needed to explain a failure.
struct Group {
  GlooPlace place;
  std::string prefix;  ///< in the store, the members' alone
  GroupIdentity identity;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> process_group;
  bool failed = false;

  ~Group() {
    // A group with a lost peer may wait for ever in its destructor; the process is about to end anyway.
    if (failed) (void)process_group.release();
  }

  /// Collective over the members.
  void connect() { process_group = connect_gloo(place, prefix, identity.rank, identity.size()); }

  [[noreturn]] void fail(const std::string& description, const std::string& cause) {
    failed = true;
    FailureSight sight{.timeout = says_timeout(cause), .what = description, .cause = first_line(cause)};
    sight.closed = !sight.timeout;
    GroupFailure failure = share_failure(place.store, prefix, identity, sight, [] {});
    failure.timeout_seconds = static_cast<double>(place.timeout.count()) / 1000.0;
    fail_group(identity, description, failure);
  }
};

/// For gloo: the tensor without its ownership, which stays with the caller. A thread of gloo holds on to what
/// it was given until some time after wait() has returned, and would keep memory that is free by then.
at::Tensor borrowed(const at::Tensor& tensor) {
  FSDP_CHECK(tensor.is_contiguous());
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.options());
}

at::Tensor borrowed_bytes(const at::Tensor& tensor) { return borrowed(tensor).view(at::kByte); }

/// Collectives are complete at the call. Tensors travel as bytes where no arithmetic is done on the way,
/// because gloo knows fewer element types than the toolkit.
class GlooCommunicator final : public Communicator {
 public:
  explicit GlooCommunicator(std::unique_ptr<Group> group) : group_(std::move(group)) {}

  int rank() const override { return group_->identity.rank; }
  int world_size() const override { return group_->identity.size(); }
  std::string backend_name() const override { return "gloo"; }

  std::unique_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input,
                                   const CallSite& site) override {
    FSDP_CHECK(output.numel() == input.numel() * world_size() && output.scalar_type() == input.scalar_type());
    run("all_gather", site, [&](c10d::ProcessGroupGloo& gloo) {
      at::Tensor out = borrowed_bytes(output), in = borrowed_bytes(input);
      return gloo._allgather_base(out, in);
    });
    return done_work();
  }

  std::unique_ptr<Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                       const CallSite& site) override {
    FSDP_CHECK(input.numel() == output.numel() * world_size() && output.scalar_type() == input.scalar_type());
    // c10d's gloo reduce-scatter is a whole all-reduce; exchanging the parts moves half the bytes.
    at::Tensor received = receive_buffer(input);
    run("reduce_scatter", site, [&](c10d::ProcessGroupGloo& gloo) {
      at::Tensor out = borrowed_bytes(received), in = borrowed_bytes(input);
      std::vector<int64_t> even;
      return gloo.alltoall_base(out, in, even, even);
    });
    sum_in_rank_order(output, received.chunk(world_size()));
    return done_work();
  }

  std::unique_ptr<Work> all_reduce(const at::Tensor& tensor, ReduceOp op, const CallSite& site) override {
    at::Tensor wide = sums_in_float(tensor.scalar_type()) ? tensor.to(at::kFloat) : tensor;
    run("all_reduce", site, [&](c10d::ProcessGroupGloo& gloo) {
      std::vector<at::Tensor> tensors{borrowed(wide)};
      c10d::AllreduceOptions options;
      options.reduceOp = op == ReduceOp::kSum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX;
      return gloo.allreduce(tensors, options);
    });
    if (!wide.is_same(tensor)) tensor.copy_(wide);
    return done_work();
  }

  std::unique_ptr<Work> broadcast(const at::Tensor& tensor, int root, const CallSite& site) override {
    run("broadcast", site, [&](c10d::ProcessGroupGloo& gloo) {
      std::vector<at::Tensor> tensors{borrowed_bytes(tensor)};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      return gloo.broadcast(tensors, options);
    });
    return done_work();
  }

  void barrier(const CallSite& site) override {
    at::Tensor token = at::empty({1}, at::kFloat).zero_();
    run("barrier", site, [&](c10d::ProcessGroupGloo& gloo) {
      std::vector<at::Tensor> tensors{token};
      return gloo.allreduce(tensors);
    });
  }

  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    return at::empty({numel}, at::TensorOptions().dtype(dtype));
  }

  std::shared_ptr<Communicator> subgroup(const std::string& name, const std::vector<int>& ranks) override {
    if (auto existing = existing_subgroup(name, ranks)) return existing;
    // Groups of one name may be of other ranks, or be made again.
    GroupIdentity identity = group_->identity.subgroup(name, ranks);
    std::string prefix = util::concat(group_->prefix, "/", name, "/", identity.joined_ranks());
    prefix += util::concat("/", groups_made_[prefix]++);
    return make_gloo_group(group_->place, std::move(identity), prefix);
  }

 private:
  template <typename Issue>
  void run(const char* op, const CallSite& site, const Issue& issue) {
    try {
      issue(*group_->process_group)->wait();
    } catch (const std::exception& error) {
      group_->fail(described(op, site), error.what());
    }
  }

  /// Uninitialised, of the input's size and type. One buffer serves all reduce-scatters, because fresh memory
  /// costs a page fault every 4 KiB.
  at::Tensor receive_buffer(const at::Tensor& input) {
    int64_t bytes = static_cast<int64_t>(input.nbytes());
    if (!received_.defined() || received_.numel() < bytes) {
      received_.reset();  // first the old one goes
      received_ = at::empty({bytes}, at::kByte);
    }
    return received_.narrow(0, 0, bytes).view(input.scalar_type());
  }

  std::unique_ptr<Group> group_;
  at::Tensor received_;
  std::map<std::string, int> groups_made_;  ///< by prefix in the store
};

}  // namespace

std::unique_ptr<Communicator> make_gloo_communicator(const LaunchEnvironment& environment,
                                                     const CommOptions& options) {
  return make_gloo_communicator(environment, options, join_run_store(environment, options.timeout()));
}

std::unique_ptr<Communicator> make_gloo_communicator(const LaunchEnvironment& environment,
                                                     const CommOptions& options, RunStore store) {
  auto group = std::make_unique<Group>();
  group->identity = run_identity(environment);
  group->place = gloo_place(environment, options, std::move(store));
  try {
    group->prefix = "world";
    group->connect();
  } catch (const std::exception& error) {
    std::string text = error.what();
    util::fail(says_timeout(text) ? ErrorKind::kTimeout : ErrorKind::kPeerLost, "rank ", environment.rank,
               " could not connect to its ", environment.world_size - 1, " peers from address ",
               group->place.address, ": ", first_line(text),
               " (GLOO_SOCKET_IFNAME chooses another network interface)");
  }
  return std::make_unique<GlooCommunicator>(std::move(group));
}

std::unique_ptr<Communicator> make_gloo_group(const GlooPlace& place, GroupIdentity identity,
                                              const std::string& prefix) {
  auto group = std::make_unique<Group>();
  group->place = place;
  group->identity = std::move(identity);
  group->prefix = prefix;
  try {
    group->connect();
  } catch (const std::exception& error) {
    group->fail("connecting", error.what());
  }
  return std::make_unique<GlooCommunicator>(std::move(group));
}

}  // namespace fsdp::comm
