#include "comm/hierarchical_communicator.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <map>
#include <utility>
#include <vector>

#include "comm/failure_report.h"
#include "comm/gloo_communicator.h"
#include "comm/gloo_exchange.h"
#include "comm/host_layout.h"
#include "comm/rank_order_sum.h"
#include "comm/shm_communicator.h"
#include "util/error.h"
#include "util/hash.h"

namespace fsdp::comm {
namespace {

using Transfers = std::vector<GlooExchange::Transfer>;

/// An all-reduce of up to so many bytes goes to all hosts whole: one exchange costs less than three steps.
constexpr int64_t kSmallBytes = 16 << 10;

enum Op : uint64_t { kBarrier, kAllGather, kReduceScatter, kAllReduceSum, kAllReduceMax, kBroadcast };

/// Collectives that differ have different tags, so that none takes the other's data; `step` is that of one
/// collective.
int tag_of(Op op, const at::Tensor& tensor, uint64_t step = 0) {
  uint64_t tag = util::mix64(op * 256 + step);
  if (tensor.defined()) {
    tag = util::mix64(tag ^ static_cast<uint64_t>(tensor.scalar_type()));
    tag = util::mix64(tag ^ static_cast<uint64_t>(tensor.numel()));
  }
  return static_cast<int>(tag & 0x7fffffff);
}

int place_of(const std::vector<int>& ranks, int rank) {
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

class HierarchicalCommunicator final : public Communicator {
 public:
  HierarchicalCommunicator(const RunConnections& connections, GroupIdentity identity, const std::string& key)
      : connections_(connections),
        identity_(std::move(identity)),
        key_(key),
        layout_(host_layout(connections_.host->hosts(), identity_.ranks)) {
    FSDP_CHECK(layout_.even(), layout_.odd_one());
    while (place_of(layout_.members[static_cast<size_t>(host_)], rank()) == per_host()) ++host_;
    place_ = place_of(layout_.members[static_cast<size_t>(host_)], rank());
    const std::vector<int>& here = layout_.members[static_cast<size_t>(host_)];
    GroupIdentity local = identity_.subgroup("host", here);
    const std::string local_key = util::concat(key_, "/host/", local.ranks.front());
    shm_ = ShmGroup::connect(connections_.host, std::move(local), timeout_seconds(),
                             util::hash_of(0, local_key));
    local_ = make_shm_communicator(shm_, local_key);
    try {
      cross_ = std::make_unique<GlooExchange>(connections_.gloo, util::concat(key_, "/cross/", place_), host_,
                                              hosts());
    } catch (const std::exception&) {
      give_up("connecting");
    }
  }

  int rank() const override { return identity_.rank; }
  int world_size() const override { return identity_.size(); }
  std::string backend_name() const override { return "hierarchical"; }

  std::unique_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input,
                                   const CallSite& site) override {
    FSDP_CHECK(output.numel() == input.numel() * world_size() &&
               output.scalar_type() == input.scalar_type() && output.is_contiguous() &&
               input.is_contiguous());
    return run("all_gather", site, [&] {
      const int tag = tag_of(kAllGather, input);
      at::Tensor own = part(output, host_, place_);
      if (own.data_ptr() != input.data_ptr()) std::memmove(own.data_ptr(), input.data_ptr(), own.nbytes());
      Transfers received, sent;
      for (int i = 1; i < hosts(); ++i) {
        received.push_back(cross_->receive(before(i), tag, part(output, before(i), place_)));
      }
      for (int i = 1; i < hosts(); ++i) sent.push_back(cross_->send(after(i), tag, own));
      gather_inside(output, host_, site);
      for (int i = 1; i < hosts(); ++i) {
        cross_->wait(received[static_cast<size_t>(i) - 1]);
        gather_inside(output, before(i), site);
      }
      wait_for(sent);
    });
  }

  std::unique_ptr<Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                       const CallSite& site) override {
    FSDP_CHECK(input.numel() == output.numel() * world_size() &&
               output.scalar_type() == input.scalar_type() && output.is_contiguous() &&
               input.is_contiguous());
    return run("reduce_scatter", site, [&] {
      const int tag = tag_of(kReduceScatter, output);
      const int64_t numel = output.numel();
      const auto type = type_between(input, ReduceOp::kSum);
      at::Tensor sums = scratch(0, hosts() * numel, type), partial = scratch(1, hosts() * numel, type);
      Transfers received, sent;
      for (int i = 1; i < hosts(); ++i) {
        received.push_back(cross_->receive(before(i), tag, sums.narrow(0, before(i) * numel, numel)));
      }
      for (int i = 1; i < hosts(); ++i) {
        at::Tensor sum = partial.narrow(0, after(i) * numel, numel);
        reduce_inside(sum, input, after(i), site);
        sent.push_back(cross_->send(after(i), tag, sum));
      }
      reduce_inside(sums.narrow(0, host_ * numel, numel), input, host_, site);
      wait_for(received);
      const std::vector<at::Tensor> parts = sums.chunk(hosts());
      // Nobody reads the input any more, of which the output may be a part.
      if (type == output.scalar_type()) {
        sum_in_rank_order(output.view({-1}), parts);
      } else {
        sum_in_rank_order(parts[0], parts);
        output.view({-1}).copy_(parts[0]);
      }
      wait_for(sent);
    });
  }

  std::unique_ptr<Work> all_reduce(const at::Tensor& tensor, ReduceOp op, const CallSite& site) override {
    return run("all_reduce", site, [&] {
      at::Tensor dense = tensor.contiguous();
      if (static_cast<int64_t>(dense.nbytes()) <= kSmallBytes) {
        all_reduce_whole(dense.view({-1}), op, site);
      } else {
        all_reduce_in_pieces(dense.view({-1}), op, site);
      }
      if (!dense.is_same(tensor)) tensor.copy_(dense);
    });
  }

  std::unique_ptr<Work> broadcast(const at::Tensor& tensor, int root, const CallSite& site) override {
    FSDP_CHECK(root >= 0 && root < world_size() && tensor.is_contiguous());
    return run("broadcast", site, [&] {
      int root_host = 0;
      while (place_of(layout_.members[static_cast<size_t>(root_host)], root) == per_host()) ++root_host;
      const int root_place = place_of(layout_.members[static_cast<size_t>(root_host)], root);
      if (place_ == root_place) broadcast_across(tensor, root_host);
      local_->broadcast(tensor, root_place, site);
    });
  }

  void barrier(const CallSite& site) override {
    run("barrier", site, [&] {
      local_->barrier(site);
      // This rank's counterparts have come, and with each all of its host.
      exchange(tag_of(kBarrier, {}), at::empty({1}, at::kByte).zero_(), scratch(0, hosts(), at::kByte));
    });
  }

  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    return allocate_shared(*connections_.host, numel, dtype);
  }

  std::shared_ptr<Communicator> subgroup(const std::string& name, const std::vector<int>& ranks) override {
    if (auto existing = existing_subgroup(name, ranks)) return existing;
    // Groups of one name may be of other ranks, or be made again.
    GroupIdentity identity = identity_.subgroup(name, ranks);
    std::string key = util::concat(key_, "/", name, "/", identity.joined_ranks());
    key += util::concat("/", groups_made_[key]++);
    return connect_group(connections_, std::move(identity), key);
  }

 private:
  int hosts() const { return layout_.hosts(); }
  int per_host() const { return static_cast<int>(layout_.members.front().size()); }
  int member(int host, int place) const {
    return layout_.members[static_cast<size_t>(host)][static_cast<size_t>(place)];
  }
  /// The hosts in a ring: each rank sends to those after its own, and receives from those before, in turn.
  int after(int steps) const { return (host_ + steps) % hosts(); }
  int before(int steps) const { return (host_ - steps + hosts()) % hosts(); }
  double timeout_seconds() const { return static_cast<double>(connections_.gloo.timeout.count()) / 1000.0; }

  static at::ScalarType type_between(const at::Tensor& tensor, ReduceOp op) {
    return op == ReduceOp::kSum && sums_in_float(tensor.scalar_type()) ? at::kFloat : tensor.scalar_type();
  }

  /// That of a rank, of a tensor [W * n].
  at::Tensor part(const at::Tensor& whole, int host, int place) const {
    const int64_t numel = whole.numel() / world_size();
    return whole.view({-1}).narrow(0, member(host, place) * numel, numel);
  }

  /// Where the ranks of each host follow each other, their parts of a tensor [W * n] are one block [L * n].
  bool consecutive(int host) const {
    return member(host, per_host() - 1) - member(host, 0) == per_host() - 1;
  }
  at::Tensor block(const at::Tensor& whole, int host) const {
    const int64_t numel = whole.numel() / hosts();
    return whole.view({-1}).narrow(0, member(host, 0) * numel / per_host(), numel);
  }

  /// The parts of a host's ranks, of which this rank has that of its place, to all ranks of this host.
  void gather_inside(const at::Tensor& whole, int host, const CallSite& site) {
    at::Tensor own = part(whole, host, place_);
    if (consecutive(host)) {
      local_->all_gather(block(whole, host), own, site);
      return;
    }
    at::Tensor together = shared_scratch(own.numel() * per_host(), own.scalar_type());
    local_->all_gather(together, own, site);
    for (int place = 0; place < per_host(); ++place) {
      if (place == place_) continue;
      std::memcpy(part(whole, host, place).data_ptr(),
                  together.narrow(0, place * own.numel(), own.numel()).data_ptr(), own.nbytes());
    }
  }

  /// sum [n] = the sum over this host's ranks of the part of `whole` that is a host's rank's of this place.
  void reduce_inside(const at::Tensor& sum, const at::Tensor& whole, int host, const CallSite& site) {
    if (consecutive(host)) {
      local_->reduce_scatter(sum, block(whole, host), site);
      return;
    }
    at::Tensor together = shared_scratch(sum.numel() * per_host(), whole.scalar_type());
    for (int place = 0; place < per_host(); ++place) {
      const at::Tensor from = part(whole, host, place);
      std::memcpy(together.narrow(0, place * sum.numel(), sum.numel()).data_ptr(), from.data_ptr(),
                  from.nbytes());
    }
    local_->reduce_scatter(sum, together, site);
  }

  /// all [H * n] = the tensors [n] of the ranks of this place, by host.
  void exchange(int tag, const at::Tensor& own, const at::Tensor& all) {
    const int64_t numel = own.numel();
    std::memcpy(all.narrow(0, host_ * numel, numel).data_ptr(), own.data_ptr(), own.nbytes());
    Transfers transfers;
    for (int i = 1; i < hosts(); ++i) {
      transfers.push_back(cross_->receive(before(i), tag, all.narrow(0, before(i) * numel, numel)));
    }
    for (int i = 1; i < hosts(); ++i) transfers.push_back(cross_->send(after(i), tag, own));
    wait_for(transfers);
  }

  void all_reduce_whole(const at::Tensor& tensor, ReduceOp op, const CallSite& site) {
    const auto type = type_between(tensor, op);
    at::Tensor value = tensor.to(type);
    local_->all_reduce(value, op, site);
    at::Tensor all = scratch(0, hosts() * value.numel(), type);
    exchange(tag_of(op == ReduceOp::kSum ? kAllReduceSum : kAllReduceMax, tensor), value, all);
    reduce_hosts(value, all, op);
    if (!value.is_same(tensor)) tensor.copy_(value);
  }

  /// value [n] = the sum or maximum of all [H * n], by host.
  static void reduce_hosts(const at::Tensor& value, const at::Tensor& all, ReduceOp op) {
    std::vector<const void*> parts;
    for (int64_t begin = 0; begin < all.numel(); begin += value.numel()) {
      parts.push_back(all.narrow(0, begin, value.numel()).data_ptr());
    }
    reduce_in_rank_order(value.data_ptr(), parts, value.numel(), value.scalar_type(), op);
  }

  void all_reduce_in_pieces(const at::Tensor& tensor, ReduceOp op, const CallSite& site) {
    const int64_t numel = (tensor.numel() + per_host() - 1) / per_host();  // of a piece
    at::Tensor whole = tensor;
    if (numel * per_host() > tensor.numel()) {
      whole = shared_scratch(numel * per_host(), tensor.scalar_type());
      whole.narrow(0, 0, tensor.numel()).copy_(tensor);
      whole.narrow(0, tensor.numel(), whole.numel() - tensor.numel()).zero_();
    }
    at::Tensor piece = whole.narrow(0, place_ * numel, numel), value = piece;
    if (op == ReduceOp::kMax) {
      local_->all_reduce(whole, op, site);
    } else {
      const auto type = type_between(tensor, op);
      if (type != piece.scalar_type()) value = scratch(1, numel, type);
      local_->reduce_scatter(value, whole, site);
    }
    all_reduce_across(piece, value, op);
    local_->all_gather(whole, piece, site);
    if (!whole.is_same(tensor)) tensor.copy_(whole.narrow(0, 0, tensor.numel()));
  }

  /// piece [n] = the sum or maximum over the ranks of this place of value [n], which may be the same memory:
  /// each host has a share of it, which it reduces for all.
  void all_reduce_across(const at::Tensor& piece, const at::Tensor& value, ReduceOp op) {
    const auto share = [&](const at::Tensor& of, int host) {
      const int64_t begin = of.numel() * host / hosts();
      return of.narrow(0, begin, of.numel() * (host + 1) / hosts() - begin);
    };
    const Op kind = op == ReduceOp::kSum ? kAllReduceSum : kAllReduceMax;
    at::Tensor own = share(value, host_);
    at::Tensor all = scratch(0, hosts() * own.numel(), value.scalar_type());
    std::memcpy(all.narrow(0, host_ * own.numel(), own.numel()).data_ptr(), own.data_ptr(), own.nbytes());
    Transfers transfers;
    for (int i = 1; i < hosts() && own.numel() > 0; ++i) {
      transfers.push_back(cross_->receive(before(i), tag_of(kind, piece, 1),
                                          all.narrow(0, before(i) * own.numel(), own.numel())));
    }
    for (int i = 1; i < hosts(); ++i) {
      at::Tensor theirs = share(value, after(i));
      if (theirs.numel() > 0) transfers.push_back(cross_->send(after(i), tag_of(kind, piece, 1), theirs));
    }
    wait_for(transfers);
    at::Tensor result = share(piece, host_);
    if (own.numel() > 0) reduce_hosts(own, all, op);
    if (!value.is_same(piece)) result.copy_(own);

    transfers.clear();
    for (int i = 1; i < hosts(); ++i) {
      at::Tensor theirs = share(piece, before(i));
      if (theirs.numel() > 0) transfers.push_back(cross_->receive(before(i), tag_of(kind, piece, 2), theirs));
    }
    for (int i = 1; i < hosts() && result.numel() > 0; ++i) {
      transfers.push_back(cross_->send(after(i), tag_of(kind, piece, 2), result));
    }
    wait_for(transfers);
  }

  /// Down a binomial tree, whose nodes are hosts counted from the root's.
  void broadcast_across(const at::Tensor& tensor, int root_host) {
    const int tag = tag_of(kBroadcast, tensor, static_cast<uint64_t>(root_host) + 1);
    const int node = (host_ - root_host + hosts()) % hosts();
    const auto host_at = [&](int its_node) { return (its_node + root_host) % hosts(); };
    int reach = 1;
    while (reach < hosts() && (node & reach) == 0) reach *= 2;
    if (node > 0) cross_->wait(cross_->receive(host_at(node - reach), tag, tensor));
    Transfers sent;
    while (reach /= 2) {
      if (node + reach < hosts()) sent.push_back(cross_->send(host_at(node + reach), tag, tensor));
    }
    wait_for(sent);
  }

  void wait_for(const Transfers& transfers) {
    for (const auto& transfer : transfers) cross_->wait(transfer);
  }

  template <typename Body>
  std::unique_ptr<Work> run(const char* op, const CallSite& site, const Body& body) {
    if (failure_) std::rethrow_exception(failure_);
    try {
      body();
    } catch (const std::exception&) {
      give_up(described(op, site));
    }
    return done_work();
  }

  /// Of the exception under way: lets all others of the group fail too, and throws what they agree on.
  [[noreturn]] void give_up(const std::string& what) {
    FailureSight sight{.what = what};
    util::ErrorKind kind = util::ErrorKind::kUnexpected;
    try {
      throw;
    } catch (const GroupError& error) {
      kind = error.kind();
      sight.cause = error.failure().cause;
      sight.silent = error.failure().silent_ranks;
    } catch (const util::Error& error) {
      kind = error.kind();
      sight.cause = first_line(error.what());
    } catch (const std::exception& error) {
      sight.cause = first_line(error.what());
    }
    sight.timeout = kind == util::ErrorKind::kTimeout;
    // Shared memory knows who is gone.
    sight.closed = kind == util::ErrorKind::kPeerLost && sight.silent.empty();
    GroupFailure failure = share_failure(connections_.gloo.store, key_, identity_, sight, [&] {
      shm_->abandon(sight.timeout);
      if (cross_) cross_->close();
    });
    failure.timeout_seconds = timeout_seconds();
    try {
      // What is no failure of the group but this rank's own, or a collective that the others are not in.
      if (kind != util::ErrorKind::kTimeout && kind != util::ErrorKind::kPeerLost) {
        util::fail(kind, what, " failed on rank ", identity_.global_rank(), identity_.shown(), ": ",
                   sight.cause);
      }
      fail_group(identity_, what, failure);
    } catch (...) {
      failure_ = std::current_exception();
      throw;
    }
  }

  /// Uninitialised; the memory of the last one with this number. Fresh memory costs a page fault every 4 KiB.
  at::Tensor scratch(size_t number, int64_t numel, at::ScalarType dtype) {
    return grown(scratch_[number], numel, dtype, [](int64_t bytes) { return at::empty({bytes}, at::kByte); });
  }
  at::Tensor shared_scratch(int64_t numel, at::ScalarType dtype) {
    return grown(shared_scratch_, numel, dtype, [this](int64_t bytes) { return allocate(bytes, at::kByte); });
  }
  template <typename Allocate>
  static at::Tensor grown(at::Tensor& memory, int64_t numel, at::ScalarType dtype, const Allocate& allocate) {
    const int64_t bytes = numel * static_cast<int64_t>(c10::elementSize(dtype));
    if (!memory.defined() || memory.numel() < bytes) {
      memory.reset();  // first the old one goes
      memory = allocate(bytes);
    }
    return memory.narrow(0, 0, bytes).view(dtype);
  }

  const RunConnections connections_;
  const GroupIdentity identity_;
  const std::string key_;  ///< this group's alone in the run
  const HostLayout layout_;
  int host_ = 0;   ///< of this rank, in layout_
  int place_ = 0;  ///< of this rank on its host
  std::shared_ptr<ShmGroup> shm_;
  std::unique_ptr<Communicator> local_;  ///< over shm_: the ranks of this host
  std::unique_ptr<GlooExchange> cross_;  ///< the ranks of this place, numbered as the hosts
  std::array<at::Tensor, 2> scratch_;
  at::Tensor shared_scratch_;
  std::map<std::string, int> groups_made_;
  std::exception_ptr failure_;  ///< the first
};

}  // namespace

std::unique_ptr<Communicator> connect_group(const RunConnections& connections, GroupIdentity identity,
                                            const std::string& key) {
  const HostLayout layout = host_layout(connections.host->hosts(), identity.ranks);
  if (layout.even()) return std::make_unique<HierarchicalCommunicator>(connections, std::move(identity), key);
  if (layout.hosts() > 1) return make_gloo_group(connections.gloo, std::move(identity), key);
  const double timeout_seconds = static_cast<double>(connections.gloo.timeout.count()) / 1000.0;
  auto group =
      ShmGroup::connect(connections.host, std::move(identity), timeout_seconds, util::hash_of(0, key));
  return make_shm_communicator(std::move(group), key);
}

}  // namespace fsdp::comm
