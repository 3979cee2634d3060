#include "comm/backends/hierarchical_communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <exception>
#include <tuple>
#include <utility>
#include <vector>

#include "base/util/error.h"
#include "comm/api/coded_exchange.h"
#include "comm/api/memory_operations.h"
#include "comm/gloo/gloo_exchange.h"
#include "comm/shm/shm_communicator.h"

namespace fsdp::comm {
namespace {

using Transfers = std::vector<Exchange::Transfer>;

/// Up to this size, all-reduces exchange whole tensors between all hosts: one exchange costs less than three
/// steps.
constexpr int64_t kWholeBytes = 16 << 10;

enum class CrossOp : uint64_t {
  kBarrier,
  kAllGather,
  kReduceScatter,
  kSum,
  kMax,
  kBroadcast,
  kShift,
  kCodedAllGather,
  kCodedReduceScatter
};

CrossOp reduction(ReduceOp op) { return op == ReduceOp::kSum ? CrossOp::kSum : CrossOp::kMax; }

/// Different collectives, and the steps of one collective, have different tags.
int tag_of(CrossOp op, const at::Tensor& tensor, uint64_t step = 0) {
  return transfer_tag(static_cast<uint64_t>(op) * 256 + step, tensor);
}

class HierarchicalCommunicator final : public Communicator {
 public:
  HierarchicalCommunicator(const RunConnections& connections, GroupIdentity identity, const std::string& key)
      : connections_(connections),
        identity_(std::move(identity)),
        key_(key),
        groups_(connections, key),
        layout_(host_layout(connections_.host->hosts(), identity_.ranks)) {
    FSDP_CHECK(layout_.even(), layout_.odd_one());
    locations_.resize(identity_.ranks.size());
    for (int host = 0; host < hosts(); ++host) {
      for (int place = 0; place < per_host(); ++place) {
        locations_[static_cast<size_t>(member(host, place))] = {host, place};
      }
    }
    std::tie(host_, place_) = location_of(rank());
    for (int from = 0; from < world_size(); ++from) {
      const int places = location_of((from + 1) % world_size()).second - location_of(from).second;
      places_shifted_ = std::max(places_shifted_, (places + per_host()) % per_host());
    }
    const std::vector<int>& here = layout_.members[static_cast<size_t>(host_)];
    GroupIdentity local = identity_.subgroup("host", here);
    const std::string local_key = concat(key_, "/host/", local.ranks.front());
    shm_ = ShmGroup::connect(connections_.host, std::move(local), timeout_seconds(), local_key);
    local_ = make_shm_communicator(shm_);
    try {
      const std::string cross_key = concat(key_, "/cross/", place_);
      if (connections_.mpi) {
        std::vector<int> counterparts;
        for (int host = 0; host < hosts(); ++host) counterparts.push_back(member(host, place_));
        cross_ = make_mpi_exchange(*connections_.mpi, identity_.subgroup("cross", counterparts), cross_key);
      } else {
        cross_ = std::make_unique<GlooExchange>(connections_.gloo, cross_key, host_, hosts());
      }
      coded_ = std::make_unique<CodedExchange>(*cross_, host_, hosts());
    } catch (const std::exception& error) {
      give_up("connecting", error);
    }
  }

  int rank() const override { return identity_.rank; }
  int world_size() const override { return identity_.size(); }
  std::string backend_name() const override { return connections_.mpi ? "hierarchical_mpi" : "hierarchical"; }
  /// Sums of hosts are added. That is the same if each host has a power of two of consecutive ranks.
  bool adds_in_pairs() const override {
    if (!std::has_single_bit(static_cast<unsigned>(per_host()))) return false;
    for (int host = 0; host < hosts(); ++host) {
      if (!consecutive(host) || member(host, 0) != host * per_host()) return false;
    }
    return true;
  }

  WorkPtr all_gather(const at::Tensor& output, const at::Tensor& input, const CallSite& site) override {
    check_whole(output, input);
    return run("all_gather", site, [&] {
      const int tag = tag_of(CrossOp::kAllGather, input);
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

  WorkPtr reduce_scatter(const at::Tensor& output, const at::Tensor& input, const CallSite& site) override {
    check_whole(input, output);
    return run("reduce_scatter", site, [&] {
      const int tag = tag_of(CrossOp::kReduceScatter, output);
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
      // From here on no rank reads the input, of which the output may be a part.
      if (type == output.scalar_type()) {
        sum_in_rank_order(output.view({-1}), parts);
      } else {
        sum_in_rank_order(parts[0], parts);
        output.view({-1}).copy_(parts[0]);
      }
      wait_for(sent);
    });
  }

  /// Codes go over the network in pieces, and from there to the ranks of this host as a whole: pieces would
  /// make these ranks wait for each other more often.
  WorkPtr coded_all_gather(const at::Tensor& output, const at::Tensor& input, const CodingPtr& coding,
                           const CallSite& site) override {
    check_whole(output, input);
    return run("all_gather", site, [&] {
      const CodedPieces pieces(coding->type, input.numel());
      const at::Tensor codes = scratch(0, world_size() * coding->bytes(input.numel()), at::kByte);
      const auto take = [&](int host, int64_t last_piece) {
        if (last_piece + 1 < pieces.count()) return;
        gather_inside(codes, host, site);
        for (int place = 0; place < per_host(); ++place) {
          for (int64_t piece = 0; piece < pieces.count(); ++piece) {
            decode(coding->type, pieces.of_bytes(part(codes, host, place), piece),
                   pieces.of_values(part(output, host, place), piece));
          }
        }
      };
      coded_->all_gather(
          {.tag = tag_of(CrossOp::kCodedAllGather, input),
           .input = input,
           .coding = coding,
           .place = [&](int host,
                        int64_t piece) { return pieces.of_bytes(part(codes, host, place_), piece); },
           .take = take});
    });
  }

  /// Ranks of a host add exactly; only what goes over the network is coded.
  WorkPtr coded_reduce_scatter(const at::Tensor& output, const at::Tensor& input, const CodingPtr& coding,
                               const FinishSums& finish, const CallSite& site) override {
    check_whole(input, output);
    return run("reduce_scatter", site, [&] {
      const int64_t numel = output.numel();
      const at::Tensor sums = scratch(0, hosts() * numel, type_between(input, ReduceOp::kSum));
      const auto sum_for = [&](int host) {
        const at::Tensor sum = sums.narrow(0, host * numel, numel);
        reduce_inside(sum, input, host, site);
        return sum;
      };
      coded_->reduce_scatter({.tag = tag_of(CrossOp::kCodedReduceScatter, output),
                              .output = output,
                              .coding = coding,
                              .finish = finish,
                              .part = sum_for});
    });
  }
  int coded_parts() const override { return hosts(); }

  WorkPtr all_reduce(const at::Tensor& tensor, ReduceOp op, const CallSite& site) override {
    return run("all_reduce", site, [&] {
      at::Tensor dense = tensor.contiguous();
      if (static_cast<int64_t>(dense.nbytes()) <= kWholeBytes) {  // for speed only
        all_reduce_whole(dense.view({-1}), op, site);
      } else {
        all_reduce_in_pieces(dense.view({-1}), op, site);
      }
      if (!dense.is_same(tensor)) tensor.copy_(dense);
    });
  }

  WorkPtr broadcast(const at::Tensor& tensor, int root, const CallSite& site) override {
    FSDP_CHECK(root >= 0 && root < world_size() && tensor.is_contiguous());
    return run("broadcast", site, [&] {
      const auto [root_host, root_place] = location_of(root);
      if (place_ == root_place) broadcast_across(tensor, root_host);
      local_->broadcast(tensor, root_place, site);
    });
  }

  WorkPtr shift(const at::Tensor& output, const at::Tensor& input, const CallSite& site) override {
    check_shift(output, input, site);
    return run("shift", site, [&] {
      if (input.numel() == 0) return;
      const int tag = tag_of(CrossOp::kShift, input);
      const int previous_host = location_of(previous_rank()).first;
      Transfers transfers;
      if (previous_host != host_) transfers.push_back(cross_->receive(previous_host, tag, output));
      // A tensor moves inside the host to the place of its receiver, and from there to the receiver's host.
      at::Tensor passing = input;
      for (int places = 0;; ++places) {
        const int sender = member(host_, (place_ - places + per_host()) % per_host());
        const auto [host, place] = location_of((sender + 1) % world_size());
        if (place == place_ && host != host_) transfers.push_back(cross_->send(host, tag, passing));
        if (places == places_shifted_) break;
        const int next_sender = member(host_, (place_ - places - 1 + per_host()) % per_host());
        at::Tensor passed = output;  // the output, or memory for a tensor that is passed on
        if (next_sender != previous_rank()) {
          passed = places == 0 ? scratch(0, input.numel(), input.scalar_type()) : at::empty_like(input);
        }
        local_->shift(passed, passing, site);
        passing = passed;
      }
      wait_for(transfers);
    });
  }

  void barrier(const CallSite& site) override {
    run("barrier", site, [&] {
      local_->barrier(site);
      // A counterpart comes here only after all ranks of its host.
      const at::Tensor token = at::empty({1}, at::kByte).zero_();
      exchange(tag_of(CrossOp::kBarrier, {}), scratch(0, hosts(), at::kByte), [&](int) { return token; });
    });
  }

  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    return allocate_shared(*connections_.host, numel, dtype);
  }

  std::shared_ptr<Communicator> new_group(const std::string& name, const std::vector<int>& ranks) override {
    return groups_.connect(identity_, name, ranks);
  }

 private:
  int hosts() const { return layout_.hosts(); }
  int per_host() const { return static_cast<int>(layout_.members.front().size()); }
  int member(int host, int place) const {
    return layout_.members[static_cast<size_t>(host)][static_cast<size_t>(place)];
  }
  /// The host of a rank, and its place among the ranks there.
  std::pair<int, int> location_of(int rank) const { return locations_[static_cast<size_t>(rank)]; }
  /// The hosts form a ring: each rank sends to the hosts after its own and receives from those before, in
  /// turn.
  int after(int steps) const { return (host_ + steps) % hosts(); }
  int before(int steps) const { return (host_ - steps + hosts()) % hosts(); }
  double timeout_seconds() const { return std::chrono::duration<double>(connections_.gloo.timeout).count(); }

  static at::ScalarType type_between(const at::Tensor& tensor, ReduceOp op) {
    return op == ReduceOp::kSum && sums_in_float(tensor.scalar_type()) ? at::kFloat : tensor.scalar_type();
  }

  /// The part [n] of one rank in a tensor [W * n].
  at::Tensor part(const at::Tensor& whole, int host, int place) const {
    const int64_t numel = whole.numel() / world_size();
    return whole.view({-1}).narrow(0, member(host, place) * numel, numel);
  }

  /// If the ranks of a host are consecutive, their parts of a tensor [W * n] are one block [L * n].
  bool consecutive(int host) const {
    return member(host, per_host() - 1) - member(host, 0) == per_host() - 1;
  }
  at::Tensor block(const at::Tensor& whole, int host) const {
    const int64_t numel = whole.numel() / hosts();
    return whole.view({-1}).narrow(0, member(host, 0) * numel / per_host(), numel);
  }

  /// Gathers the parts of the ranks of `host` to all ranks of this host; this rank has the part of its
  /// counterpart there.
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

  /// sum [n] = the sum over this host's ranks of the part of this rank's counterpart on `host` in `whole`.
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

  /// all [H * n] = `to_host(host_)` [n] and the tensors that the counterparts send to this host, by host.
  template <typename To>
  void exchange(int tag, const at::Tensor& all, const To& to_host) {
    const at::Tensor own = to_host(host_);
    const auto from = [&](int host) { return all.narrow(0, host * own.numel(), own.numel()); };
    std::memcpy(from(host_).data_ptr(), own.data_ptr(), own.nbytes());
    cross_->swap_with_all(host_, hosts(), tag, from, to_host);
  }

  void all_reduce_whole(const at::Tensor& tensor, ReduceOp op, const CallSite& site) {
    const auto type = type_between(tensor, op);
    at::Tensor value = tensor.to(type);
    local_->all_reduce(value, op, site);
    at::Tensor all = scratch(0, hosts() * value.numel(), type);
    exchange(tag_of(reduction(op), tensor), all, [&](int) { return value; });
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
    const int64_t numel = (tensor.numel() + per_host() - 1) / per_host();  // elements of a piece
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

  /// piece [n] = the sum or maximum over the counterparts of value [n], which may be the same memory: each
  /// host reduces its share of it for all.
  void all_reduce_across(const at::Tensor& piece, const at::Tensor& value, ReduceOp op) {
    const auto share = [&](const at::Tensor& of, int host) {
      const int64_t begin = of.numel() * host / hosts();
      return of.narrow(0, begin, of.numel() * (host + 1) / hosts() - begin);
    };
    const at::Tensor own = share(value, host_), result = share(piece, host_);
    at::Tensor all = scratch(0, hosts() * own.numel(), value.scalar_type());
    exchange(tag_of(reduction(op), piece, 1), all, [&](int host) { return share(value, host); });
    if (own.numel() > 0) reduce_hosts(own, all, op);
    if (!value.is_same(piece)) result.copy_(own);
    cross_->swap_with_all(
        host_, hosts(), tag_of(reduction(op), piece, 2), [&](int host) { return share(piece, host); },
        [&](int) { return result; });
  }

  /// Down a binomial tree, whose nodes are the hosts, counted from the root's.
  void broadcast_across(const at::Tensor& tensor, int root_host) {
    const int tag = tag_of(CrossOp::kBroadcast, tensor, static_cast<uint64_t>(root_host) + 1);
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
  WorkPtr run(const char* op, const CallSite& site, const Body& body) {
    if (failure_) std::rethrow_exception(failure_);
    try {
      body();
    } catch (const std::exception& error) {
      give_up(described(op, site), error);
    }
    return done_work();
  }

  /// Makes all other ranks of the group fail too, after `error` on this one, and throws the common failure.
  [[noreturn]] void give_up(const std::string& what, const std::exception& error) {
    FailureSight sight{.what = what, .cause = first_line(error.what())};
    const auto* classified = dynamic_cast<const util::Error*>(&error);
    const ErrorKind kind = classified ? classified->kind() : ErrorKind::kUnexpected;
    if (const auto* of_group = dynamic_cast<const GroupError*>(&error)) {
      sight.cause = of_group->failure().cause;
      sight.silent = of_group->failure().silent_ranks;
    }
    sight.timeout = kind == ErrorKind::kTimeout;
    // A failure in shared memory names the lost ranks.
    sight.closed = kind == ErrorKind::kPeerLost && sight.silent.empty();
    const auto let_others_notice = [&] {
      shm_->abandon(sight.timeout);
      if (cross_) cross_->close();
    };
    const GroupFailure failure = share_failure(connections_.gloo.store, key_, identity_, sight,
                                               let_others_notice, connections_.gloo.timeout);
    try {
      // Not a failure of the group: an error of this rank, or ranks in different collectives.
      if (kind != ErrorKind::kTimeout && kind != ErrorKind::kPeerLost) {
        util::fail(kind, what, " failed on rank ", identity_.global_rank(), identity_.shown(), ": ",
                   sight.cause);
      }
      fail_group(identity_, what, failure);
    } catch (...) {
      failure_ = std::current_exception();
      throw;
    }
  }

  at::Tensor scratch(size_t number, int64_t numel, at::ScalarType dtype) {
    return comm::scratch(scratch_[number], numel, dtype);
  }
  at::Tensor shared_scratch(int64_t numel, at::ScalarType dtype) {
    return comm::scratch(shared_scratch_, numel, dtype,
                         [this](int64_t bytes) { return allocate(bytes, at::kByte); });
  }

  const RunConnections connections_;
  const GroupIdentity identity_;
  const std::string key_;  ///< unique to this group in the run
  Subgroups groups_;
  const HostLayout layout_;
  std::vector<std::pair<int, int>> locations_;  ///< host and place there, by rank
  int host_ = 0;                                ///< host of this rank in layout_
  int place_ = 0;                               ///< place of this rank among the ranks of its host
  /// Largest distance, in places, of a shift's receiver from its sender; 1 if a host's ranks are consecutive.
  int places_shifted_ = 0;
  std::shared_ptr<ShmGroup> shm_;
  std::unique_ptr<Communicator> local_;   ///< over shm_: the ranks of this host
  std::unique_ptr<Exchange> cross_;       ///< the counterparts, numbered as the hosts
  std::unique_ptr<CodedExchange> coded_;  ///< over cross_
  std::array<at::Tensor, 2> scratch_;
  at::Tensor shared_scratch_;
  std::exception_ptr failure_;  ///< the first
};

}  // namespace

std::unique_ptr<Communicator> make_hierarchical_communicator(const RunConnections& connections,
                                                             GroupIdentity identity, const std::string& key) {
  return std::make_unique<HierarchicalCommunicator>(connections, std::move(identity), key);
}

}  // namespace fsdp::comm
