#include "comm/api/communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "comm/api/memory_operations.h"

namespace fsdp::comm {
namespace {

class DoneWork final : public Work {
 public:
  void wait() override {}
};

}  // namespace

WorkPtr done_work() { return std::make_unique<DoneWork>(); }

WorkPtr Communicator::enqueue(std::function<void()> task) {
  task();
  return done_work();
}

WorkPtr Communicator::reduce_scatter_and_finish(const at::Tensor& output, const at::Tensor& input,
                                                FinishSums finish, const CallSite& site) {
  reduce_scatter(output, input, site)->wait();
  finish_sums(output, finish);
  return done_work();
}

WorkPtr Communicator::enqueue_release(std::function<void()> task) { return enqueue(std::move(task)); }

at::Tensor Communicator::allocate(int64_t numel, at::ScalarType dtype) {
  return at::empty({numel}, at::TensorOptions().dtype(dtype));
}

at::Tensor Communicator::allocate_on_host(int64_t numel, at::ScalarType dtype) {
  return allocate(numel, dtype);
}

std::shared_ptr<Communicator> Communicator::existing_subgroup(const std::string& name,
                                                              const std::vector<int>& ranks) {
  bool ascending = std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
  FSDP_CHECK(ascending && std::binary_search(ranks.begin(), ranks.end(), rank()) && ranks.front() >= 0 &&
                 ranks.back() < world_size(),
             "group ", name, ": expected ascending ranks below ", world_size(), " with ", rank(),
             " among them");
  if (static_cast<int>(ranks.size()) == world_size()) return shared_from_this();
  if (ranks.size() == 1) return std::make_shared<SingleCommunicator>();
  return nullptr;
}

std::shared_ptr<Communicator> Communicator::subgroup(const std::string& name, const std::vector<int>& ranks) {
  auto existing = existing_subgroup(name, ranks);
  return existing ? existing : new_group(name, ranks);
}

std::shared_ptr<Communicator> Communicator::duplicate(const std::string& name) {
  if (world_size() == 1) return shared_from_this();
  std::vector<int> ranks(static_cast<size_t>(world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return new_group(name, ranks);
}

void Communicator::check_shift(const at::Tensor& output, const at::Tensor& input, const CallSite& site) {
  FSDP_CHECK(output.numel() == input.numel() && output.scalar_type() == input.scalar_type() &&
                 output.is_contiguous() && input.is_contiguous(),
             "shift of ", site.unit, ": expected two contiguous tensors of one size and type, found ",
             output.numel(), " elements of ", c10::toString(output.scalar_type()), " out, ", input.numel(),
             " of ", c10::toString(input.scalar_type()), " in");
}

void Communicator::check_whole(const at::Tensor& whole, const at::Tensor& part, bool may_differ) const {
  FSDP_CHECK(whole.numel() == part.numel() * world_size() &&
             (may_differ || whole.scalar_type() == part.scalar_type()) && whole.is_contiguous() &&
             part.is_contiguous());
}

std::vector<std::string> all_gather_text(Communicator& communicator, const std::string& text,
                                         const CallSite& site) {
  int world = communicator.world_size();
  if (world == 1) return {text};
  // Most texts are short or empty, and come with their lengths.
  constexpr int64_t kShort = 120, kLength = sizeof(int64_t);
  const auto gather = [&](int64_t size, const auto& fill) {
    at::Tensor mine = at::zeros({size}, at::kByte);
    fill(static_cast<char*>(mine.data_ptr()));
    at::Tensor all = at::empty({size * world}, at::kByte);
    communicator.all_gather(all, mine, site)->wait();
    return all;
  };
  const auto own_length = static_cast<int64_t>(text.size());
  at::Tensor all = gather(kLength + kShort, [&](char* to) {
    std::memcpy(to, &own_length, kLength);
    if (own_length <= kShort) std::memcpy(to + kLength, text.data(), text.size());
  });
  std::vector<int64_t> lengths(static_cast<size_t>(world));
  const char* from = static_cast<const char*>(all.data_ptr()) + kLength;
  for (int64_t i = 0; i < world; ++i) {
    std::memcpy(&lengths[static_cast<size_t>(i)], from + i * (kLength + kShort) - kLength, kLength);
  }
  int64_t stride = kLength + kShort;
  if (const int64_t longest = *std::ranges::max_element(lengths); longest > kShort) {
    all = gather(longest, [&](char* to) { std::memcpy(to, text.data(), text.size()); });
    from = static_cast<const char*>(all.data_ptr());
    stride = longest;
  }
  std::vector<std::string> texts;
  for (int64_t i = 0; i < world; ++i) {
    texts.emplace_back(from + i * stride, static_cast<size_t>(lengths[static_cast<size_t>(i)]));
  }
  return texts;
}

std::string first_text(Communicator& communicator, const std::string& text, const CallSite& site) {
  const int64_t world = communicator.world_size();
  if (world == 1) return text;
  // The lowest rank gives the largest number.
  at::Tensor number = at::full({1}, text.empty() ? 0 : world - communicator.rank(), at::kLong);
  communicator.all_reduce(number, ReduceOp::kMax, site)->wait();
  if (number.item<int64_t>() == 0) return "";
  const auto first = static_cast<int>(world - number.item<int64_t>());
  at::Tensor length = at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
  communicator.broadcast(length, first, site)->wait();
  at::Tensor bytes = at::empty({length.item<int64_t>()}, at::kByte);
  if (communicator.rank() == first) std::memcpy(bytes.data_ptr(), text.data(), text.size());
  communicator.broadcast(bytes, first, site)->wait();
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel())};
}

WorkPtr SingleCommunicator::all_gather(const at::Tensor& output, const at::Tensor& input, const CallSite&) {
  FSDP_CHECK(output.numel() == input.numel(), output.numel(), " elements out, ", input.numel(), " in");
  if (output.data_ptr() != input.data_ptr()) output.copy_(input);
  return done_work();
}

WorkPtr SingleCommunicator::broadcast(const at::Tensor&, int root, const CallSite&) {
  FSDP_CHECK(root == 0);
  return done_work();
}

}  // namespace fsdp::comm
