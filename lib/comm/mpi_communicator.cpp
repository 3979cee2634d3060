#include "comm/mpi_communicator.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include "comm/memory_operations.h"
#include "util/error.h"

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

  std::unique_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input,
                                   const CallSite& site) override {
    FSDP_CHECK(output.numel() == input.numel() * world_size() &&
               output.scalar_type() == input.scalar_type() && output.is_contiguous() &&
               input.is_contiguous());
    return run({Op::kAllGather, "all_gather", input}, site, {output, input}, [&](const std::string& what) {
      gather(bytes_of(output), bytes_of(input), input.nbytes(), what);
    });
  }

  std::unique_ptr<Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                       const CallSite& site) override {
    FSDP_CHECK(input.numel() == output.numel() * world_size() &&
               output.scalar_type() == input.scalar_type() && input.is_contiguous());
    const at::Tensor received = scratch(received_, input.numel(), input.scalar_type());
    return run({Op::kReduceScatter, "reduce_scatter", output}, site, {received, input},
               [&](const std::string& what) {
                 exchange(bytes_of(received), bytes_of(input), output.nbytes(), what);
                 sum_in_rank_order(output, received.chunk(world_size()));
               });
  }

  std::unique_ptr<Work> all_reduce(const at::Tensor& tensor, ReduceOp op, const CallSite& site) override {
    const at::Tensor dense = tensor.contiguous().view({-1});
    const bool whole = static_cast<int64_t>(dense.nbytes()) <= kGatheredBytes;
    const int64_t numel = whole ? dense.numel() : (dense.numel() + world_size() - 1) / world_size();
    const at::Tensor received = scratch(received_, numel * world_size(), dense.scalar_type());
    at::Tensor padded = dense;
    if (!whole && numel * world_size() > dense.numel()) {
      padded = scratch(padded_, numel * world_size(), dense.scalar_type());
      padded.narrow(0, 0, dense.numel()).copy_(dense);
      padded.narrow(0, dense.numel(), padded.numel() - dense.numel()).zero_();
    }
    const Op kind = op == ReduceOp::kSum ? Op::kSum : Op::kMax;
    auto done = run({kind, "all_reduce", dense}, site, {received, padded}, [&](const std::string& what) {
      const auto reduce = [&](const at::Tensor& into) {
        std::vector<const void*> parts;
        for (const at::Tensor& part : received.chunk(world_size())) parts.push_back(part.data_ptr());
        reduce_in_rank_order(into.data_ptr(), parts, numel, dense.scalar_type(), op);
      };
      if (whole) {
        gather(bytes_of(received), bytes_of(dense), dense.nbytes(), what);
        if (numel > 0) reduce(dense);
        return;
      }
      const at::Tensor piece = padded.narrow(0, rank() * numel, numel);
      exchange(bytes_of(received), bytes_of(padded), piece.nbytes(), what);
      reduce(piece);
      gather(bytes_of(padded), bytes_of(piece), piece.nbytes(), what);
    });
    if (!padded.is_same(dense)) dense.copy_(padded.narrow(0, 0, dense.numel()));
    if (dense.data_ptr() != tensor.data_ptr()) tensor.copy_(dense.view(tensor.sizes()));
    return done;
  }

  std::unique_ptr<Work> broadcast(const at::Tensor& tensor, int root, const CallSite& site) override {
    FSDP_CHECK(root >= 0 && root < world_size() && tensor.is_contiguous());
    return run({Op::kBroadcast, "broadcast", tensor, root}, site, {tensor}, [&](const std::string& what) {
      const auto bytes = static_cast<int64_t>(tensor.nbytes());
      for (int64_t begin = 0; begin < bytes; begin += kPiece) {
        group_->wait(
            {library().broadcast(mpi(), bytes_of(tensor) + begin, std::min(kPiece, bytes - begin), root)},
            what);
      }
    });
  }

  std::unique_ptr<Work> shift(const at::Tensor& output, const at::Tensor& input,
                              const CallSite& site) override {
    check_shift(output, input, site);
    if (input.numel() == 0) return done_work();
    std::vector<int> neighbours{previous_rank()};
    if (next_rank() != previous_rank()) neighbours.push_back(next_rank());
    return run(
        {Op::kShift, "shift", input}, site, {output, input},
        [&](const std::string& what) {
          MpiGroup::Requests requests;
          receive(requests, previous_rank(), bytes_of(output), input.nbytes());
          send(requests, next_rank(), bytes_of(input), input.nbytes());
          group_->wait(requests, what);
        },
        neighbours);
  }

  void barrier(const CallSite& site) override {
    run({Op::kBarrier, "barrier", {}}, site, {}, [](const std::string&) {});
  }

  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    return at::empty({numel}, at::TensorOptions().dtype(dtype));
  }

  std::shared_ptr<Communicator> new_group(const std::string& name, const std::vector<int>& ranks) override {
    // Several groups may have this name, of other ranks or of the same.
    GroupIdentity identity = group_->identity().subgroup(name, ranks);
    std::string prefix = util::concat(group_->prefix(), "/", name, "/", identity.joined_ranks());
    prefix += util::concat("/", groups_made_[prefix]++);
    return std::make_shared<MpiCommunicator>(
        std::make_unique<MpiGroup>(*group_, ranks, std::move(identity), prefix));
  }

 private:
  enum class Op : int32_t { kBarrier = 1, kAllGather, kReduceScatter, kSum, kMax, kBroadcast, kShift };

  struct Call {
    Op op;
    const char* name;
    at::Tensor tensor;  ///< of the type and size that all have; none for a barrier
    int root = 0;
  };

  /// Pieces of what an int does not count.
  static constexpr int64_t kPiece = int64_t{1} << 30;

  MpiLibrary& library() const { return group_->library(); }
  MpiLibrary::Group mpi() const { return group_->mpi(); }
  static char* bytes_of(const at::Tensor& tensor) { return static_cast<char*>(tensor.data_ptr()); }

  /// `memory`: what MPI reads and writes in it.
  template <typename Body>
  std::unique_ptr<Work> run(const Call& call, const CallSite& site, std::vector<at::Tensor> memory,
                            const Body& body, const std::vector<int>& peers) {
    if (failure_) std::rethrow_exception(failure_);
    const std::string what = described(call.name, site);
    try {
      MpiGroup::Record record{.op = static_cast<int32_t>(call.op), .root = call.root};
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
  std::unique_ptr<Work> run(const Call& call, const CallSite& site, std::vector<at::Tensor> memory,
                            const Body& body) {
    return run(call, site, std::move(memory), body, others_);
  }

  void receive(MpiGroup::Requests& requests, int from, char* data, int64_t bytes) {
    for (int64_t begin = 0; begin < bytes; begin += kPiece) {
      requests.push_back(
          library().receive(mpi(), from, kDataTag, data + begin, std::min(kPiece, bytes - begin)));
    }
  }
  void send(MpiGroup::Requests& requests, int to, const char* data, int64_t bytes) {
    for (int64_t begin = 0; begin < bytes; begin += kPiece) {
      requests.push_back(library().send(mpi(), to, kDataTag, data + begin, std::min(kPiece, bytes - begin)));
    }
  }

  /// out [W * bytes] = the ranks' `in` [bytes], which may be this rank's part of it.
  void gather(char* out, const char* in, int64_t bytes, const std::string& what) {
    if (bytes * world_size() <= MpiLibrary::kMostBytes) {
      return group_->wait({library().all_gather(mpi(), out, in, bytes)}, what);
    }
    char* const own = out + rank() * bytes;
    if (own != in) copy_memory(own, in, bytes);
    move(
        out, bytes, [&](int) { return own; }, what);
  }

  /// out [W * bytes] = this rank's part [bytes] of the ranks' in [W * bytes].
  void exchange(char* out, const char* in, int64_t bytes, const std::string& what) {
    if (bytes * world_size() <= MpiLibrary::kMostBytes) {
      return group_->wait({library().all_to_all(mpi(), out, in, bytes)}, what);
    }
    copy_memory(out + rank() * bytes, in + rank() * bytes, bytes);
    move(
        out, bytes, [&](int to) { return in + to * bytes; }, what);
  }

  template <typename To>
  void move(char* out, int64_t bytes, const To& to, const std::string& what) {
    MpiGroup::Requests requests;
    for (int other : others_) receive(requests, other, out + other * bytes, bytes);
    for (int i = 1; i < world_size(); ++i) {
      const int other = (rank() + i) % world_size();
      send(requests, other, to(other), bytes);
    }
    group_->wait(std::move(requests), what);
  }

  /// Uninitialised. Collectives share it, because fresh memory costs a page fault per 4 KiB.
  static at::Tensor scratch(at::Tensor& memory, int64_t numel, at::ScalarType dtype) {
    const int64_t bytes = numel * static_cast<int64_t>(c10::elementSize(dtype));
    if (!memory.defined() || memory.numel() < bytes) {
      memory.reset();  // frees the old one first
      memory = at::empty({bytes}, at::kByte);
    }
    return memory.narrow(0, 0, bytes).view(dtype);
  }

  const std::unique_ptr<MpiGroup> group_;
  std::vector<int> others_;  ///< all ranks but this one
  at::Tensor received_, padded_;
  std::map<std::string, int> groups_made_;
  std::exception_ptr failure_;  ///< the first
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(const MpiPlace& place) {
  GroupIdentity identity = run_identity(place.run->environment());
  return std::make_unique<MpiCommunicator>(std::make_unique<MpiGroup>(place, std::move(identity), "mpi"));
}

}  // namespace fsdp::comm
