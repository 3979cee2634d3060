#include "comm/shm/shm_communicator.h"

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "base/util/error.h"
#include "comm/api/group_failure.h"
#include "comm/api/memory_operations.h"
#include "comm/shm/common_places.h"

namespace fsdp::comm {
namespace {

/// Up to this size per rank, a copy through a stage costs less than the meeting that it saves.
constexpr int64_t kSmallBytes = 32 << 10;

/// Half of a stage, through which tensors outside shared memory are copied: it stays in a core's L2 cache.
constexpr int64_t kPieceBytes = 512 << 10;

constexpr int64_t kLine = 64;  ///< bytes of a cache line, a multiple of every element size

enum Op : int32_t {
  kBarrier,
  kCommonMemory,
  kAllGather,
  kAllGatherInCommon,
  kReduceScatter,
  kAllReduceSum,
  kAllReduceMax,
  kBroadcast,
  kShift,
  kAllToAll
};

std::byte* bytes_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

void free_block(void* block) { delete static_cast<SharedSegment::Block*>(block); }

/// A rank's part in one collective: its record, and the description for errors.
struct ShmCall {
  ShmGroup::Record record;
  std::string what;

  ShmCall(Op op, const char* name, const at::Tensor& tensor, const CallSite& site)
      : what(described(name, site)) {
    record.op = op;
    if (tensor.defined()) {
      record.dtype = static_cast<int32_t>(tensor.scalar_type());
      record.numel = tensor.numel();
    }
    std::strncpy(record.unit, what.c_str(), sizeof(record.unit) - 1);
  }
};

/// An all-gather into common memory takes one meeting and moves only the ranks' own parts. Every other
/// collective has two paths. The direct path, for tensors of all ranks in shared memory, reads the others'
/// tensors in place, between a meeting that announces where they are and one that shows that all have been
/// read. Other and small tensors are copied through the ranks' stages, with one meeting per piece.
class ShmCommunicator final : public Communicator, private CommonMemory {
 public:
  explicit ShmCommunicator(std::shared_ptr<ShmGroup> group)
      : group_(std::move(group)),
        common_(std::make_shared<CommonPlaces>(group_->host(), group_->identity().ranks.front(),
                                               group_->identity().size())) {}

  int rank() const override { return group_->identity().rank; }
  int world_size() const override { return group_->identity().size(); }
  std::string backend_name() const override { return "shm"; }

  WorkPtr all_gather(const at::Tensor& output, const at::Tensor& input, const CallSite& site) override {
    check_whole(output, input);
    const int64_t bytes = static_cast<int64_t>(input.nbytes());
    std::byte* own = bytes_of(output) + rank() * bytes;
    const std::byte* from = bytes_of(input);
    if (common_->is_open(bytes_of(output))) {
      if (from != own) copy_memory(own, from, bytes);
      meet(ShmCall(kAllGatherInCommon, "all_gather", input, site));
      return done_work();
    }
    ShmCall call(kAllGather, "all_gather", input, site);
    std::optional<int64_t> shown = shared(from, bytes);
    if (bytes > kSmallBytes && !shown && (shown = shared(own, bytes))) {
      copy_memory(own, from, bytes);
      from = own;
    }
    show(call, from, bytes, shown, [&](int64_t begin, int64_t length) {
      for (int peer : peers()) copy_memory(bytes_of(output) + peer * bytes + begin, shown_by(peer), length);
    });
    if (from != own) copy_memory(own, from, bytes);
    return done_work();
  }

  WorkPtr reduce_scatter(const at::Tensor& output, const at::Tensor& input, const CallSite& site) override {
    return reduce_scatter_and_finish(output, input, {}, site);
  }

  WorkPtr reduce_scatter_and_finish(const at::Tensor& output, const at::Tensor& input, FinishSums finish,
                                    const CallSite& site) override {
    check_whole(input, output, output.scalar_type() == at::kFloat && sums_in_float(input.scalar_type()));
    // The others read all of the input except this rank's part, which may be the output.
    const int64_t bytes = output.numel() * input.element_size();
    const std::byte* from = bytes_of(input);
    if (output.is_alias_of(input) && bytes_of(output) != from + rank() * bytes) {
      at::Tensor apart = at::empty(output.sizes(), output.options());
      reduce_scatter_and_finish(apart, input, std::move(finish), site);
      output.copy_(apart);
      return done_work();
    }
    ShmCall call(kReduceScatter, "reduce_scatter", output, site);
    const int64_t all_bytes = static_cast<int64_t>(input.nbytes());
    const int64_t own = rank() * bytes;
    if (all_bytes > kSmallBytes && meet_directly(call, shared(from, all_bytes))) {
      const auto all = parts(from + own, [&](int peer) { return shown_by(peer) + own; });
      if (finish) {
        sum_and_finish(output.data_ptr<float>(), all, output.numel(), finish);
      } else {
        sum(output, input.scalar_type(), 0, bytes, all);
      }
      meet(call);
      return done_work();
    }
    in_pieces(bytes, world_size(), [&](int64_t begin, int64_t length) {
      std::byte* stage = group_->stage(length * world_size());
      for (int peer : peers()) {
        copy_memory(stage + peer * length, from + peer * bytes + begin, length);
      }
      meet_on_stage(call);
      const int64_t at = rank() * length;
      sum(output, input.scalar_type(), begin, length,
          parts(from + own + begin, [&](int peer) { return shown_by(peer) + at; }));
    });
    if (finish) finish_sums(output, finish);
    return done_work();
  }

  WorkPtr all_reduce(const at::Tensor& tensor, ReduceOp op, const CallSite& site) override {
    if (!tensor.is_contiguous()) {
      at::Tensor dense = tensor.contiguous();
      all_reduce(dense, op, site);
      tensor.copy_(dense);
      return done_work();
    }
    ShmCall call(op == ReduceOp::kSum ? kAllReduceSum : kAllReduceMax, "all_reduce", tensor, site);
    const int64_t bytes = static_cast<int64_t>(tensor.nbytes());
    std::byte* data = bytes_of(tensor);
    if (bytes <= kSmallBytes) {
      in_pieces(bytes, 1, [&](int64_t, int64_t length) {
        copy_memory(group_->stage(length), data, length);
        meet_on_stage(call);
        reduce(tensor, 0, length, parts(data, [&](int peer) { return shown_by(peer); }), op);
      });
    } else if (meet_directly(call, shared(data, bytes))) {
      all_reduce_directly(call, tensor, op);
    } else {
      in_pieces(bytes, 1,
                [&](int64_t begin, int64_t length) { all_reduce_piece(call, tensor, op, begin, length); });
    }
    return done_work();
  }

  WorkPtr broadcast(const at::Tensor& tensor, int root, const CallSite& site) override {
    FSDP_CHECK(root >= 0 && root < world_size() && tensor.is_contiguous());
    ShmCall call(kBroadcast, "broadcast", tensor, site);
    call.record.root = root;
    const int64_t bytes = static_cast<int64_t>(tensor.nbytes());
    std::byte* data = bytes_of(tensor);
    // Only the location of the root's tensor matters.
    show(call, rank() == root ? data : nullptr, bytes, rank() == root ? shared(data, bytes) : 0,
         [&](int64_t begin, int64_t length) {
           if (rank() != root) copy_memory(data + begin, shown_by(root), length);
         });
    return done_work();
  }

  WorkPtr shift(const at::Tensor& output, const at::Tensor& input, const CallSite& site) override {
    check_shift(output, input, site);
    ShmCall call(kShift, "shift", input, site);
    const int64_t bytes = static_cast<int64_t>(input.nbytes());
    const std::byte* from = bytes_of(input);
    show(call, from, bytes, shared(from, bytes), [&](int64_t begin, int64_t length) {
      copy_memory(bytes_of(output) + begin, shown_by(previous_rank()), length);
    });
    return done_work();
  }

  /// Coded parts are never in shared memory, so they are copied through the stages.
  WorkPtr all_to_all(const at::Tensor& output, const at::Tensor& input, const CallSite& site) override {
    ShmCall call(kAllToAll, "all_to_all", input, site);
    const int64_t bytes = static_cast<int64_t>(input.nbytes()) / world_size();
    const std::byte* from = bytes_of(input);
    in_pieces(bytes, world_size(), [&](int64_t begin, int64_t length) {
      std::byte* const stage = group_->stage(length * world_size());
      for (int peer : peers()) copy_memory(stage + peer * length, from + peer * bytes + begin, length);
      meet_on_stage(call);
      for (int peer : peers()) {
        copy_memory(bytes_of(output) + peer * bytes + begin, shown_by(peer) + rank() * length, length);
      }
    });
    return done_work();
  }

  void barrier(const CallSite& site) override { meet(ShmCall(kBarrier, "barrier", {}, site)); }

  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    return allocate_shared(*group_->host(), numel, dtype);
  }

  CommonMemory* common_memory() override { return this; }
  WorkPtr enqueue_with_memory(int64_t nbytes, const CallSite& site,
                              std::function<void(c10::DataPtr)> task) override {
    // Small parts are gathered through stages with one meeting.
    if (nbytes <= kSmallBytes * world_size()) return enqueue([&] { task({}); });
    ShmCall call(kCommonMemory, "all_gather", {}, site);
    call.record.numel = nbytes;
    const bool makes = rank() == 0;
    if (makes) call.record.offset = common_->take(nbytes);
    try {
      meet(call);
    } catch (...) {
      if (makes && call.record.offset != ShmGroup::kNowhere) common_->drop(call.record.offset);
      throw;
    }
    const int64_t place = group_->record(0).offset;
    task(place == ShmGroup::kNowhere ? c10::DataPtr() : common_->open(place));
    return done_work();
  }
  void reserve(int64_t nbytes) override {
    if (rank() == 0) common_->reserve(nbytes);
  }

  std::shared_ptr<Communicator> new_group(const std::string& name, const std::vector<int>& ranks) override {
    GroupIdentity identity = group_->identity().subgroup(name, ranks);
    const std::string key = keys_.next(name, identity);
    return std::make_shared<ShmCommunicator>(
        ShmGroup::connect(group_->host(), std::move(identity), group_->timeout_seconds(), key));
  }

 private:
  /// The other ranks, starting after this one, so that not all read the same memory at once.
  std::vector<int> peers() const {
    std::vector<int> ranks;
    for (int i = 1; i < world_size(); ++i) ranks.push_back((rank() + i) % world_size());
    return ranks;
  }

  void meet(const ShmCall& call) { group_->meet(call.record, call.what); }

  /// The offset of this memory in this rank's segment, if it lies there.
  std::optional<int64_t> shared(const void* data, int64_t bytes) const {
    return group_->host()->own()->offset_of(data, bytes);
  }

  /// Announces where this rank's data lies; false if any rank's data is not in shared memory.
  bool meet_directly(ShmCall& call, std::optional<int64_t> offset) {
    call.record.offset = offset.value_or(ShmGroup::kNowhere);
    meet(call);
    for (int peer = 0; peer < world_size(); ++peer) {
      if (group_->record(peer).offset == ShmGroup::kNowhere) return false;
    }
    return true;
  }

  void meet_on_stage(ShmCall& call) {
    call.record.offset = group_->stage_offset();
    meet(call);
  }

  /// Shows `bytes` from `from` to the other ranks, directly at `offset` or piece by piece through the stages;
  /// null: this rank shows nothing. `take(begin, length)` reads that part of what the other ranks show.
  template <typename Take>
  void show(ShmCall& call, const std::byte* from, int64_t bytes, std::optional<int64_t> offset,
            const Take& take) {
    if (bytes > kSmallBytes && meet_directly(call, offset)) {
      take(0, bytes);
      return meet(call);
    }
    in_pieces(bytes, 1, [&](int64_t begin, int64_t length) {
      std::byte* const stage = group_->stage(length);
      if (from != nullptr) copy_memory(stage, from + begin, length);
      meet_on_stage(call);
      take(begin, length);
    });
  }

  /// The memory that a rank announced at the last meeting.
  const std::byte* shown_by(int peer) const { return group_->memory_of(peer, group_->record(peer).offset); }

  /// Pointers by rank: `own` for this rank, `of(peer)` for the others.
  template <typename Of>
  std::vector<const void*> parts(const void* own, const Of& of) const {
    std::vector<const void*> pointers(static_cast<size_t>(world_size()), own);
    for (int peer : peers()) pointers[static_cast<size_t>(peer)] = of(peer);
    return pointers;
  }

  /// Sets bytes [begin, begin + length) of `output` to the sum or maximum of `parts`.
  static void reduce(const at::Tensor& output, int64_t begin, int64_t length,
                     const std::vector<const void*>& parts, ReduceOp op) {
    reduce_in_rank_order(bytes_of(output) + begin, parts, length / output.element_size(),
                         output.scalar_type(), op);
  }

  /// The same for sums of parts of type `dtype`, in whose bytes `begin` and `length` count; `output` has that
  /// type or receives unrounded sums.
  static void sum(const at::Tensor& output, at::ScalarType dtype, int64_t begin, int64_t length,
                  const std::vector<const void*>& parts) {
    if (output.scalar_type() == dtype) return reduce(output, begin, length, parts, ReduceOp::kSum);
    const auto element_bytes = static_cast<int64_t>(c10::elementSize(dtype));
    sum_unrounded(output.data_ptr<float>() + begin / element_bytes, parts, length / element_bytes, dtype);
  }

  /// Calls `step(begin, length)` for the pieces of `bytes`; `copies` of a piece fit into half a stage.
  template <typename Step>
  static void in_pieces(int64_t bytes, int64_t copies, const Step& step) {
    const int64_t piece = std::max<int64_t>(kPieceBytes / copies / kLine * kLine, kLine);
    for (int64_t begin = 0; begin < bytes; begin += piece) step(begin, std::min(piece, bytes - begin));
  }

  /// The bounds of the part of [0, bytes) that `rank` reduces for all.
  static std::pair<int64_t, int64_t> share(int64_t bytes, int rank, int world) {
    const int64_t each =
        (bytes / world + kLine) / kLine * kLine;  // whole elements, and no cache line of two ranks
    return {std::min(rank * each, bytes), std::min((rank + 1) * each, bytes)};
  }

  /// Each rank reduces its share in its own tensor, from where the others copy it.
  void all_reduce_directly(ShmCall& call, const at::Tensor& tensor, ReduceOp op) {
    const int64_t bytes = static_cast<int64_t>(tensor.nbytes());
    const auto [first, last] = share(bytes, rank(), world_size());
    reduce(tensor, first, last - first,
           parts(bytes_of(tensor) + first, [&, at = first](int peer) { return shown_by(peer) + at; }), op);
    meet(call);
    for (int peer : peers()) {
      const auto [begin, end] = share(bytes, peer, world_size());
      copy_memory(bytes_of(tensor) + begin, shown_by(peer) + begin, end - begin);
    }
    meet(call);
  }

  /// The same with bytes [begin, begin + length) of tensors outside shared memory.
  void all_reduce_piece(ShmCall& call, const at::Tensor& tensor, ReduceOp op, int64_t begin, int64_t length) {
    std::byte* data = bytes_of(tensor) + begin;
    copy_memory(group_->stage(length), data, length);
    meet_on_stage(call);
    const auto [first, last] = share(length, rank(), world_size());
    reduce(tensor, begin + first, last - first,
           parts(data + first, [&, at = first](int peer) { return shown_by(peer) + at; }), op);
    copy_memory(group_->stage(length) + first, data + first, last - first);
    meet_on_stage(call);
    for (int peer : peers()) {
      const auto [peer_first, peer_last] = share(length, peer, world_size());
      copy_memory(data + peer_first, shown_by(peer) + peer_first, peer_last - peer_first);
    }
  }

  std::shared_ptr<ShmGroup> group_;
  std::shared_ptr<CommonPlaces> common_;
  SubgroupKeys keys_{group_->key()};
};

}  // namespace

at::Tensor allocate_shared(const HostRanks& host, int64_t numel, at::ScalarType dtype) {
  const auto options = at::TensorOptions().dtype(dtype);
  const int64_t bytes = numel * static_cast<int64_t>(c10::elementSize(dtype));
  std::unique_ptr<SharedSegment::Block> block;
  if (bytes > 0) block = SharedSegment::take(host.own(), bytes);
  if (!block) return at::empty({numel}, options);
  void* data = block->data();
  c10::DataPtr memory(data, block.release(), &free_block, at::kCPU);
  // With an allocator, so that a freed storage can be given memory again (base/tensor/storage.h).
  c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(bytes), std::move(memory),
                       c10::GetCPUAllocator(), false);
  return at::empty({0}, options).set_(storage, 0, {numel}, {1});
}

std::unique_ptr<Communicator> make_shm_communicator(std::shared_ptr<ShmGroup> group) {
  return std::make_unique<ShmCommunicator>(std::move(group));
}

}  // namespace fsdp::comm
