#include "state/checkpoint/state_slices.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/device/pinned_memory.h"
#include "base/util/error.h"
#include "shard/engine/engine.h"
#include "state/optim/optimizer_state.h"

namespace fsdp::checkpoint {

namespace {

/// The range [begin, end) of part number `part` of [0, n), cut into `parts` equal parts, because manifests
/// describe equal parts in one entry. The last parts may be smaller or empty.
std::pair<int64_t, int64_t> even_part(int64_t n, int64_t part, int64_t parts) {
  const int64_t size = (n + parts - 1) / parts;
  return {std::min(part * size, n), std::min((part + 1) * size, n)};
}

/// The part of a segment that this replica saves, which must be contiguous in the segment: columns of one
/// row, or rows. Segments that have all of several rows are not split: replicas save them in turns, because
/// releases that read format version 2 do not know parts of rows.
util::Rectangle replicas_part(const shard::Segment& segment, size_t index, const shard::ProcessGroups& groups,
                              const Copies& copies) {
  const int64_t replicas = groups.replicas() * copies.count,
                replica = copies.number * groups.replicas() + groups.replica_rank();
  util::Rectangle part = segment.range;
  if (part.height() == 1) {
    const auto [begin, end] = even_part(part.length(), replica, replicas);
    part.end = part.begin + end;
    part.begin += begin;
  } else if (part.has_all_rows()) {
    if (static_cast<int64_t>(index) % replicas != replica) part.end = part.begin;
  } else {
    const auto [begin, end] = even_part(part.height(), replica, replicas);
    part.row_end = part.row_begin + end;
    part.row_begin += begin;
  }
  return part;
}

/// A slice of a state [n] that every rank holds whole. With `ranks`, this rank's part of the state.
shard::TensorSlice whole_slice(const std::string& name, const at::Tensor& state,
                               const comm::Communicator* ranks) {
  const int64_t n = state.numel();
  util::Rectangle range{0, n};
  if (ranks != nullptr) std::tie(range.begin, range.end) = even_part(n, ranks->rank(), ranks->world_size());
  return {name, {n}, range, state.narrow(0, range.begin, range.length())};
}

}  // namespace

shard::TensorSlice slice_of(const shard::Engine& engine, const shard::Segment& segment,
                            const std::string& prefix, const optim::StateView& view, SlicePurpose purpose,
                            const Copies& copies) {
  const auto index = static_cast<size_t>(&segment - engine.segments().data());
  const util::Rectangle range =
      purpose == SlicePurpose::kSave
          ? replicas_part(segment, index, engine.units()[segment.unit]->groups(), copies)
          : segment.range;
  const int64_t offset = (range.row_begin - segment.range.row_begin) * segment.range.length() + range.begin -
                         segment.range.begin;
  shard::TensorSlice slice{prefix + segment.name, segment.shape, range};
  if (view.is_coded()) slice.coded = kernels::narrow(view.codes, offset, range.numel());
  slice.data = slice.coded ? slice.coded->codes : view.data.narrow(0, offset, range.numel());
  return slice;
}

std::vector<shard::TensorSlice> state_slices(shard::Engine& engine, const optim::Optimizer& optimizer,
                                             SlicePurpose purpose) {
  std::vector<shard::TensorSlice> slices;
  if (purpose == SlicePurpose::kLoad) engine.note_changed_weights();
  const auto add = [&](const std::string& prefix, const shard::Segment& segment,
                       const optim::StateView& part) {
    slices.push_back(slice_of(engine, segment, prefix, part, purpose));
  };
  const bool adapters_only = engine.options().trained_apart;  // the frozen weights are stored elsewhere
  for (const shard::Segment& segment : engine.segments()) {
    if (adapters_only && !segment.requires_grad) continue;
    const at::Tensor& shard = engine.units()[segment.unit]->storage().shard();
    add("model/", segment, {shard.narrow(0, segment.shard_offset, segment.numel())});
  }
  const bool is_saved = purpose == SlicePurpose::kLoad || engine.communicator().rank() == 0;
  for (const auto& [name, tensor] : engine.buffers()) {
    if (adapters_only) break;
    const int64_t end = is_saved ? tensor.numel() : 0;
    slices.push_back(
        {"model/" + name, tensor.sizes().vec(), {0, end}, tensor.detach().view({-1}).narrow(0, 0, end)});
  }
  optim::for_each_state(
      engine, optimizer,
      [&](const optim::StateKind& state, const shard::Segment& segment, const optim::StateView& view) {
        const std::string prefix = "optimizer/" + state.name + "/";
        if (!state.is_whole()) return add(prefix, segment, view);
        slices.push_back(whole_slice(prefix + segment.name, view.data,
                                     purpose == SlicePurpose::kSave ? &engine.communicator() : nullptr));
      });
  return slices;
}

namespace {

/// Alignment of a slice in the buffer. A view of another dtype must begin at a multiple of its size. 64 fits
/// all dtypes, and is a cache line.
constexpr int64_t kAlignmentBytes = 64;

int64_t aligned(int64_t bytes) { return (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes; }

int64_t bytes_of(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

/// The memory of a slice: its data and, if these are codes, their scales.
std::vector<at::Tensor> memory_of(const shard::TensorSlice& slice) {
  if (slice.coded) return {slice.data, slice.coded->scales};
  return {slice.data};
}

void copy_memory(const shard::TensorSlice& from, const shard::TensorSlice& to) {
  const std::vector<at::Tensor> source = memory_of(from), target = memory_of(to);
  for (size_t i = 0; i < source.size(); ++i) at::Tensor(target[i]).copy_(source[i]);
}

bool has_same_blocks(const shard::TensorSlice& a, const shard::TensorSlice& b) {
  return a.coded.has_value() == b.coded.has_value() && (!a.coded || a.coded->phase == b.coded->phase);
}

}  // namespace

bool in_host_memory(const std::vector<shard::TensorSlice>& slices) {
  return std::all_of(slices.begin(), slices.end(),
                     [](const shard::TensorSlice& slice) { return slice.data.device().is_cpu(); });
}

void HostCopies::prepare(const std::vector<shard::TensorSlice>& slices, bool beside) {
  if (buffer_.defined() && fits(slices)) return;
  copies_.clear();
  int64_t total = 0;
  for (const shard::TensorSlice& slice : slices) {
    for (const at::Tensor& memory : memory_of(slice)) total += aligned(bytes_of(memory));
  }
  buffer_ = at::Tensor();  // frees the old buffer first
  const auto on_device = std::ranges::find_if(slices, [](const auto& slice) { return !slice.data.is_cpu(); });
  if (beside && on_device != slices.end()) {
    buffer_ = util::empty_pinned(total, at::kByte, on_device->data.device());
  } else {
    buffer_ = at::zeros({total}, at::kByte);
  }
  int64_t offset = 0;
  for (const shard::TensorSlice& slice : slices) {
    const auto next = [&](const at::Tensor& like) {
      const at::Tensor memory = buffer_.narrow(0, offset, bytes_of(like)).view(like.scalar_type());
      offset += aligned(bytes_of(like));
      return memory;
    };
    shard::TensorSlice copy = slice;
    copy.data = next(slice.data);
    if (slice.coded) {
      copy.coded->codes = copy.data;
      copy.coded->scales = next(slice.coded->scales);
    }
    copies_.push_back(std::move(copy));
  }
}

const std::vector<shard::TensorSlice>& HostCopies::take(const std::vector<shard::TensorSlice>& slices) {
  prepare(slices);
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < slices.size(); ++i) copy_memory(slices[i], copies_[i]);
  return copies_;
}

const std::vector<shard::TensorSlice>& HostCopies::begin(const std::vector<shard::TensorSlice>& slices,
                                                         const std::set<std::string>& changing,
                                                         std::function<void()> before) {
  finish();
  prepare(slices, /*beside=*/true);
  at::NoGradGuard no_grad;
  std::vector<CopyBeside::Copy> copies;
  for (size_t i = 0; i < slices.size(); ++i) {
    if (changing.contains(slices[i].name)) {
      copy_memory(slices[i], copies_[i]);
      continue;
    }
    const std::vector<at::Tensor> from = memory_of(slices[i]), to = memory_of(copies_[i]);
    for (size_t k = 0; k < from.size(); ++k) copies.push_back({from[k], to[k]});
  }
  if (!beside_) beside_ = std::make_unique<CopyBeside>();
  beside_->begin(copies, std::move(before));
  return copies_;
}

void HostCopies::finish() {
  if (beside_) beside_->finish();
}

void HostCopies::write_back(const std::vector<shard::TensorSlice>& slices) const {
  FSDP_CHECK(fits(slices));
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < slices.size(); ++i) copy_memory(copies_[i], slices[i]);
}

bool HostCopies::fits(const std::vector<shard::TensorSlice>& slices) const {
  return std::equal(slices.begin(), slices.end(), copies_.begin(), copies_.end(),
                    [](const shard::TensorSlice& a, const shard::TensorSlice& b) {
                      return a.name == b.name && a.shape == b.shape && a.range == b.range &&
                             a.data.scalar_type() == b.data.scalar_type() && has_same_blocks(a, b);
                    });
}

}  // namespace fsdp::checkpoint
