#include "checkpoint/host_copies.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "util/error.h"

namespace fsdp::checkpoint {
namespace {

/// A view of another dtype must begin at a multiple of its size; this is one for all, and a cache line.
constexpr int64_t kAlignmentBytes = 64;

int64_t aligned(int64_t bytes) { return (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes; }

int64_t bytes_of(const shard::TensorSlice& slice) { return static_cast<int64_t>(slice.data.nbytes()); }

}  // namespace

bool in_host_memory(const std::vector<shard::TensorSlice>& slices) {
  return std::all_of(slices.begin(), slices.end(),
                     [](const shard::TensorSlice& slice) { return slice.data.device().is_cpu(); });
}

void HostCopies::prepare(const std::vector<shard::TensorSlice>& slices) {
  if (buffer_.defined() && fits(slices)) return;
  copies_.clear();
  int64_t total = 0;
  for (const shard::TensorSlice& slice : slices) total += aligned(bytes_of(slice));
  buffer_ = at::Tensor();  // the old one goes first
  buffer_ = at::zeros({total}, at::kByte);
  int64_t offset = 0;
  for (const shard::TensorSlice& slice : slices) {
    shard::TensorSlice copy = slice;
    copy.data = buffer_.narrow(0, offset, bytes_of(slice)).view(slice.data.scalar_type());
    copies_.push_back(std::move(copy));
    offset += aligned(bytes_of(slice));
  }
}

const std::vector<shard::TensorSlice>& HostCopies::take(const std::vector<shard::TensorSlice>& slices) {
  prepare(slices);
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < slices.size(); ++i) copies_[i].data.copy_(slices[i].data);
  return copies_;
}

void HostCopies::write_back(const std::vector<shard::TensorSlice>& slices) const {
  FSDP_CHECK(fits(slices));
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < slices.size(); ++i) at::Tensor(slices[i].data).copy_(copies_[i].data);
}

bool HostCopies::fits(const std::vector<shard::TensorSlice>& slices) const {
  return std::equal(slices.begin(), slices.end(), copies_.begin(), copies_.end(),
                    [](const shard::TensorSlice& a, const shard::TensorSlice& b) {
                      return a.name == b.name && a.shape == b.shape && a.range == b.range &&
                             a.data.scalar_type() == b.data.scalar_type();
                    });
}

}  // namespace fsdp::checkpoint
