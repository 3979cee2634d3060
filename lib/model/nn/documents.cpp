#include "model/nn/documents.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>

namespace fsdp::nn {
namespace {

at::Tensor on_host(at::IntArrayRef shape, at::ScalarType type, const at::Device& device) {
  return at::empty(shape, at::TensorOptions(type).pinned_memory(!device.is_cpu() && !device.is_meta()));
}

}  // namespace

std::vector<int64_t> document_lengths(const std::vector<int64_t>& starts, int64_t length) {
  std::vector<int64_t> lengths;
  for (size_t i = 0; i < starts.size(); ++i) {
    lengths.push_back((i + 1 < starts.size() ? starts[i + 1] : length) - starts[i]);
  }
  return lengths;
}

int64_t longest_document(const DocumentStarts& documents, int64_t length) {
  int64_t longest = 0;
  for (const std::vector<int64_t>& starts : documents) {
    for (const int64_t tokens : document_lengths(starts, length)) longest = std::max(longest, tokens);
  }
  return longest;
}

at::Tensor document_bounds(const DocumentStarts& documents, int64_t length, const at::Device& device) {
  int64_t count = 0;
  for (const std::vector<int64_t>& starts : documents) count += static_cast<int64_t>(starts.size());
  const at::Tensor bounds = on_host({count + 1}, at::kInt, device);
  auto* next = bounds.data_ptr<int32_t>();
  int64_t row = 0;
  for (const std::vector<int64_t>& starts : documents) {
    for (const int64_t start : starts) *next++ = static_cast<int32_t>(row + start);
    row += length;
  }
  *next = static_cast<int32_t>(row);
  return bounds.to(device, /*non_blocking=*/true);
}

at::Tensor document_positions(const DocumentStarts& documents, int64_t length, const at::Device& device) {
  const at::Tensor positions = on_host({static_cast<int64_t>(documents.size()), length}, at::kLong, device);
  auto* next = positions.data_ptr<int64_t>();
  for (const std::vector<int64_t>& starts : documents) {
    for (const int64_t tokens : document_lengths(starts, length)) {
      std::iota(next, next + tokens, int64_t{0});
      next += tokens;
    }
  }
  return positions.to(device, /*non_blocking=*/true);
}

}  // namespace fsdp::nn
