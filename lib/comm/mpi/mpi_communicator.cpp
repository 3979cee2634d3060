#include "comm/mpi/mpi_communicator.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/util/error.h"
#include "comm/api/connect.h"
#include "comm/api/memory_operations.h"

namespace fsdp::comm {
namespace {

/// Up to this size, all-reduces gather whole tensors.
constexpr int64_t kGatheredBytes = 16 << 10;

class MpiCommunicator final : public Communicator {
 public:
  explicit MpiCommunicator(std::unique_ptr<MpiGroup> group) : group_(std::move(group)) {
    for (int other = 0; other < world_size(); ++other) {
      if (other != rank()) others_.push_back(other);
    }
  }

  int rank() const override { return group_->identity().rank; }
  int world_size() const override { return group_->identity().size(); }
  std::string backend_name() const override { return "mpi"; }

  WorkPtr all_gather(const at::Tensor& output, const at::Tensor& input, const CallSite& site) override {
    check_whole(output, input);
    return run({Op::kAllGather, "all_gather", input}, site, {output, input}, [&](const std::string& what) {
      gather(bytes_of(output), bytes_of(input), input.nbytes(), what);
    });
  }

  WorkPtr reduce_scatter(const at::Tensor& output, const at::Tensor& input, const CallSite& site) override {
    return sum_parts(output, input, site,
                     [&](char* out, const std::vector<const void*>& parts, int64_t numel) {
                       reduce_in_rank_order(out, parts, numel, output.scalar_type(), ReduceOp::kSum);
                     });
  }

  WorkPtr reduce_scatter_and_finish(const at::Tensor& output, const at::Tensor& input, FinishSums finish,
                                    const CallSite& site) override {
    return sum_parts(output, input, site,
                     [&](char* out, const std::vector<const void*>& parts, int64_t numel) {
                       sum_and_finish(reinterpret_cast<float*>(out), parts, numel, finish);
                     });
  }

  WorkPtr all_reduce(const at::Tensor& tensor, ReduceOp op, const CallSite& site) override {
    const at::Tensor dense = tensor.contiguous().view({-1});
    const MpiCall call{op == ReduceOp::kSum ? Op::kSum : Op::kMax, "all_reduce", dense};
    const auto reduce = [&](char* out, const std::vector<const void*>& parts, int64_t numel) {
      reduce_in_rank_order(out, parts, numel, dense.scalar_type(), op);
    };
    if (static_cast<int64_t>(dense.nbytes()) <= kGatheredBytes) {
      const at::Tensor all = scratch(received_, dense.numel() * world_size(), dense.scalar_type());
      run(call, site, {all, dense}, [&](const std::string& what) {
        gather(bytes_of(all), bytes_of(dense), dense.nbytes(), what);
        std::vector<const void*> parts;
        for (int i = 0; i < world_size(); ++i) parts.push_back(bytes_of(all) + i * dense.nbytes());
        reduce(bytes_of(dense), parts, dense.numel());
      });
    } else {
      const int64_t numel = (dense.numel() + world_size() - 1) / world_size();
      at::Tensor whole = dense;
      if (numel * world_size() > dense.numel()) {
        whole = scratch(padded_, numel * world_size(), dense.scalar_type());
        whole.narrow(0, 0, dense.numel()).copy_(dense);
        whole.narrow(0, dense.numel(), whole.numel() - dense.numel()).zero_();
      }
      const at::Tensor received = scratch(received_, whole.numel(), whole.scalar_type());
      run(call, site, {received, whole}, [&](const std::string& what) {
        char* const own = bytes_of(whole) + rank() * static_cast<int64_t>(whole.nbytes()) / world_size();
        reduce_pieces({received, whole, own}, reduce, /*to_all=*/true, what);
      });
      if (!whole.is_same(dense)) dense.copy_(whole.narrow(0, 0, dense.numel()));
    }
    if (dense.data_ptr() != tensor.data_ptr()) tensor.copy_(dense.view(tensor.sizes()));
    return done_work();
  }

  WorkPtr broadcast(const at::Tensor& tensor, int root, const CallSite& site) override {
    FSDP_CHECK(root >= 0 && root < world_size() && tensor.is_contiguous());
    return run({Op::kBroadcast, "broadcast", tensor, root}, site, {tensor}, [&](const std::string& what) {
      const auto bytes = static_cast<int64_t>(tensor.nbytes());
      const int64_t most = group_->place().most_bytes;
      for (int64_t begin = 0; begin < bytes; begin += most) {
        group_->wait(
            {library().broadcast(mpi(), bytes_of(tensor) + begin, std::min(most, bytes - begin), root)},
            what);
      }
    });
  }

  WorkPtr shift(const at::Tensor& output, const at::Tensor& input, const CallSite& site) override {
    check_shift(output, input, site);
    if (input.numel() == 0) return done_work();
    std::vector<int> neighbours{previous_rank()};
    if (next_rank() != previous_rank()) neighbours.push_back(next_rank());
    return run(
        {Op::kShift, "shift", input}, site, {output, input},
        [&](const std::string& what) {
          MpiGroup::Requests requests;
          group_->receive(requests, previous_rank(), kDataTag, bytes_of(output), input.nbytes());
          group_->send(requests, next_rank(), kDataTag, bytes_of(input), input.nbytes());
          group_->wait(requests, what);
        },
        neighbours);
  }

  WorkPtr all_to_all(const at::Tensor& output, const at::Tensor& input, const CallSite& site) override {
    const int64_t bytes = static_cast<int64_t>(input.nbytes()) / world_size();
    return run({Op::kAllToAll, "all_to_all", input}, site, {output, input}, [&](const std::string& what) {
      MpiGroup::Requests requests;
      for (int other : others_) {
        group_->receive(requests, other, kDataTag, bytes_of(output) + other * bytes, bytes);
      }
      for (int other : others_) {
        group_->send(requests, other, kDataTag, bytes_of(input) + other * bytes, bytes);
      }
      group_->wait(std::move(requests), what);
    });
  }

  void barrier(const CallSite& site) override {
    run({Op::kBarrier, "barrier", {}}, site, {}, [](const std::string&) {});
  }

  std::shared_ptr<Communicator> new_group(const std::string& name, const std::vector<int>& ranks) override {
    GroupIdentity identity = group_->identity().subgroup(name, ranks);
    const std::string prefix = keys_.next(name, identity);
    return std::make_shared<MpiCommunicator>(
        std::make_unique<MpiGroup>(*group_, ranks, std::move(identity), prefix));
  }

 private:
  enum class Op : int32_t {
    kBarrier = 1,
    kAllGather,
    kReduceScatter,
    kSum,
    kMax,
    kBroadcast,
    kShift,
    kAllToAll
  };

  struct MpiCall {
    Op op;
    const char* name;
    at::Tensor tensor;  ///< tensor with the type and size that all ranks have; undefined for a barrier
    int root = 0;
  };

  /// Large enough for the network, small enough for the cache; of whole runs (kFinishedRun).
  static constexpr int64_t kReducedPiece = 1 << 20;

  MpiLibrary& library() const { return group_->library(); }
  MpiLibrary::GroupHandle mpi() const { return group_->mpi(); }
  static char* bytes_of(const at::Tensor& tensor) { return static_cast<char*>(tensor.data_ptr()); }

  /// `memory`: the tensors that MPI reads and writes in `body`.
  template <typename Body>
  WorkPtr run(const MpiCall& call, const CallSite& site, std::vector<at::Tensor> memory, const Body& body,
              const std::vector<int>& peers) {
    if (failure_) std::rethrow_exception(failure_);
    const std::string what = described(call.name, site);
    try {
      MpiGroup::MpiRecord record{.op = static_cast<int32_t>(call.op), .root = call.root};
      if (call.tensor.defined()) {
        record.dtype = static_cast<int32_t>(call.tensor.scalar_type());
        record.numel = call.tensor.numel();
      }
      what.copy(record.what, sizeof(record.what) - 1);
      group_->guard(what, [&] {
        group_->meet(record, what, peers);
        body(what);
      });
    } catch (...) {
      group_->keep_if_failed(std::move(memory));
      failure_ = std::current_exception();
      throw;
    }
    return done_work();
  }
  template <typename Body>
  WorkPtr run(const MpiCall& call, const CallSite& site, std::vector<at::Tensor> memory, const Body& body) {
    return run(call, site, std::move(memory), body, others_);
  }

  /// out [W * bytes] = the ranks' `in` [bytes], which may be this rank's part of it.
  void gather(char* out, const char* in, int64_t bytes, const std::string& what) {
    if (bytes * world_size() <= group_->place().most_bytes) {
      return group_->wait({library().all_gather(mpi(), out, in, bytes)}, what);
    }
    char* const own = out + rank() * bytes;
    if (own != in) copy_memory(own, in, bytes);
    MpiGroup::Requests requests;
    for (int other : others_) group_->receive(requests, other, kDataTag, out + other * bytes, bytes);
    for (int other : others_) group_->send(requests, other, kDataTag, own, bytes);
    group_->wait(std::move(requests), what);
  }

  template <typename Reduce>
  WorkPtr sum_parts(const at::Tensor& output, const at::Tensor& input, const CallSite& site,
                    const Reduce& reduce) {
    check_whole(input, output);
    const at::Tensor received = scratch(received_, input.numel(), input.scalar_type());
    return run({Op::kReduceScatter, "reduce_scatter", output}, site, {received, input},
               [&](const std::string& what) {
                 reduce_pieces({received, input, bytes_of(output)}, reduce, /*to_all=*/false, what);
               });
  }

  struct ReducedParts {
    const at::Tensor &received, &whole;  ///< [W * n]
    char* own;                           ///< result [n]; may be this rank's part of `whole`
  };

  /// own = the reduced parts rank() of the ranks' `whole`. With `to_all`, `own` is inside `whole`, whose
  /// other parts become the results of the other ranks. Piece by piece: one is reduced, and sent on, while
  /// the next are under way.
  template <typename Reduce>
  void reduce_pieces(const ReducedParts& parts, const Reduce& reduce, bool to_all, const std::string& what) {
    const auto element = static_cast<int64_t>(parts.whole.element_size());
    const int64_t bytes = static_cast<int64_t>(parts.whole.nbytes()) / world_size();
    char *const whole = bytes_of(parts.whole), *const received = bytes_of(parts.received);
    std::vector<MpiGroup::Requests> first;  // indexed by piece
    MpiGroup::Requests second;
    const auto piece_at = [&](int64_t begin) { return std::min(kReducedPiece, bytes - begin); };
    for (int64_t begin = 0; begin < bytes; begin += kReducedPiece) {
      first.emplace_back();
      for (int i = 1; i < world_size(); ++i) {
        const int from = (rank() + world_size() - i) % world_size(), to = (rank() + i) % world_size();
        group_->receive(first.back(), from, kDataTag, received + from * bytes + begin, piece_at(begin));
        group_->send(first.back(), to, kDataTag, whole + to * bytes + begin, piece_at(begin));
      }
    }
    for (int64_t begin = 0; begin < bytes; begin += kReducedPiece) {
      group_->wait(std::exchange(first[static_cast<size_t>(begin / kReducedPiece)], {}), what);
      std::vector<const void*> pieces;
      for (int i = 0; i < world_size(); ++i) {
        pieces.push_back((i == rank() ? whole : received) + i * bytes + begin);
      }
      reduce(parts.own + begin, pieces, piece_at(begin) / element);
      for (int i = 1; to_all && i < world_size(); ++i) {
        const int from = (rank() + world_size() - i) % world_size(), to = (rank() + i) % world_size();
        group_->receive(second, from, kDataTag, whole + from * bytes + begin, piece_at(begin));
        group_->send(second, to, kDataTag, parts.own + begin, piece_at(begin));
      }
    }
    group_->wait(std::move(second), what);
  }

  const std::unique_ptr<MpiGroup> group_;
  std::vector<int> others_;  ///< all ranks but this one
  at::Tensor received_, padded_;
  SubgroupKeys keys_{group_->prefix()};
  std::exception_ptr failure_;  ///< the first
};

/// Messages without meetings: transfers have tags of their own.
class MpiExchange final : public Exchange {
 public:
  explicit MpiExchange(std::unique_ptr<MpiGroup> group) : group_(std::move(group)) {}

  Transfer send(int to, int tag, const at::Tensor& tensor) override {
    auto transfer = c10::make_intrusive<MpiTransfer>(tensor);
    group_->send(transfer->requests, to, tag_of(tag), transfer->data(), transfer->bytes());
    return transfer;
  }
  Transfer receive(int from, int tag, const at::Tensor& tensor) override {
    auto transfer = c10::make_intrusive<MpiTransfer>(tensor);
    group_->receive(transfer->requests, from, tag_of(tag), transfer->data(), transfer->bytes());
    return transfer;
  }
  void wait(const Transfer& transfer) override {
    auto& ours = static_cast<MpiTransfer&>(*transfer);
    GroupFailure failure;
    try {
      return group_->wait(std::exchange(ours.requests, {}), "transfer");
    } catch (const MpiGroup::Failed& failed) {
      failure = {
          .timeout = failed.sight.timeout, .silent_ranks = failed.sight.silent, .cause = failed.sight.cause};
    } catch (const std::exception& error) {
      failure.cause = first_line(error.what());
    }
    // MPI may still write it.
    (void)Transfer(transfer).release();
    throw GroupError(failure.cause, failure);
  }
  void close() override { group_->tell_all(kFailedTag); }

 private:
  struct MpiTransfer final : c10d::Work {
    explicit MpiTransfer(at::Tensor its_tensor) : tensor(std::move(its_tensor)) {}
    char* data() const { return static_cast<char*>(tensor.data_ptr()); }
    int64_t bytes() const { return static_cast<int64_t>(tensor.nbytes()); }

    at::Tensor tensor;
    MpiGroup::Requests requests;
  };

  int tag_of(int tag) const {
    return kFirstAnswerTag + tag % (group_->place().run->world().max_tag - kFirstAnswerTag);
  }

  const std::unique_ptr<MpiGroup> group_;
};

}  // namespace

std::unique_ptr<MpiGroup> make_mpi_world(const MpiPlace& place) {
  return std::make_unique<MpiGroup>(place, run_identity(place.run->environment()), "mpi");
}

std::unique_ptr<Communicator> make_mpi_communicator(const MpiPlace& place) {
  return std::make_unique<MpiCommunicator>(make_mpi_world(place));
}

std::unique_ptr<Communicator> connect_over_mpi(RunToConnect run) {
  return make_mpi_communicator({&MpiRun::get(), std::move(run.store), run.options.timeout()});
}

std::unique_ptr<Communicator> make_mpi_group(MpiGroup& world, GroupIdentity identity,
                                             const std::string& key) {
  const std::vector<int> ranks = identity.ranks;
  return std::make_unique<MpiCommunicator>(
      std::make_unique<MpiGroup>(world, ranks, std::move(identity), key));
}

std::unique_ptr<Exchange> make_mpi_exchange(MpiGroup& world, const GroupIdentity& identity,
                                            const std::string& key) {
  return std::make_unique<MpiExchange>(std::make_unique<MpiGroup>(world, identity.ranks, identity, key));
}

}  // namespace fsdp::comm
