#include "base/tensor/device_feed.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <utility>

#include "base/util/error.h"

namespace fsdp::util {
namespace {

constexpr size_t kAlignment = 64;  ///< alignment of the tensors in a slab

}  // namespace

DeviceFeed::DeviceFeed(const DeviceFeedOptions& options)
    : device_(options.device), sent_ahead_(options.sent_ahead), queue_(options.has_thread ? 1 : 0) {
  if (!device_.is_cpu()) copies_.emplace(StreamOptions{.name = "fsdp batches", .device = device_});
}

DeviceFeed::~DeviceFeed() {
  try {
    clear();
  } catch (const std::exception&) {
    // The copy has failed, so there is nothing left to wait for.
  }
}

void DeviceFeed::add(std::function<Tensors()> read) {
  std::shared_ptr<Slab> slab = copies_ ? slab_to_write() : nullptr;
  auto task = [read = std::move(read), slab, device = device_] {
    const at::NoGradGuard no_grad;
    ReadSet set;
    try {
      set.tensors = read();
      if (slab) write_to(*slab, set.tensors, device);
    } catch (...) {
      set.failure = std::current_exception();
    }
    return set;
  };
  Set set{.slab = std::move(slab), .read = queue_.add(std::move(task))};
  sets_.push_back(std::move(set));
}

DeviceFeed::Tensors DeviceFeed::take() {
  FSDP_CHECK(!sets_.empty(), "there is no set to take");
  Set set = std::move(sets_.front());
  sets_.pop_front();
  send(set);
  if (set.failure) std::rethrow_exception(set.failure);
  set.arrived.wait();
  for (size_t i = 0; copies_ && i < std::min(sent_ahead_, sets_.size()); ++i) {
    Set& next = sets_[i];
    const bool is_read =
        next.is_sent || next.read.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    if (!is_read) break;
    send(next);
  }
  return std::move(set.tensors);
}

void DeviceFeed::clear() {
  queue_.clear();
  // The caller's stream gets the memory of a set whose copy is pending, and so waits for the copy.
  for (const Set& set : sets_) set.arrived.wait();
  sets_.clear();
}

/// Returns a slab to write to: a new one until the oldest is copied, since waiting would delay the host.
std::shared_ptr<DeviceFeed::Slab> DeviceFeed::slab_to_write() {
  if (slabs_.empty() || !slabs_.front()->copied.reached()) return std::make_shared<Slab>();
  std::shared_ptr<Slab> slab = std::move(slabs_.front());
  slabs_.pop_front();
  return slab;
}

/// Replaces tensors in host memory by copies in the slab.
void DeviceFeed::write_to(Slab& slab, Tensors& tensors, at::Device device) {
  size_t bytes = 0;
  std::vector<size_t> places;
  for (const at::Tensor& tensor : tensors) {
    places.push_back(bytes);
    if (!tensor.is_cpu()) continue;
    bytes += (tensor.nbytes() + kAlignment - 1) / kAlignment * kAlignment;
  }
  if (!slab.memory.defined() || slab.memory.nbytes() < bytes) {
    // A thread without a current device would initialize the first one.
    const c10::DeviceGuard current(device);
    slab.memory = at::empty({static_cast<int64_t>(std::bit_ceil(bytes))},
                            at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    at::Tensor& tensor = tensors[i];
    if (!tensor.is_cpu()) continue;
    const at::Tensor place =
        slab.memory.narrow(0, static_cast<int64_t>(places[i]), static_cast<int64_t>(tensor.nbytes()))
            .view(tensor.scalar_type())
            .view(tensor.sizes());
    tensor = place.copy_(tensor);
  }
}

/// Waits until the set is read, and issues its copy.
void DeviceFeed::send(Set& set) {
  if (std::exchange(set.is_sent, true)) return;
  ReadSet read = set.read.get();
  set.failure = read.failure;
  if (!copies_ || set.failure || read.tensors.empty()) {
    set.tensors = std::move(read.tensors);
    return;
  }
  for (const at::Tensor& tensor : read.tensors) {
    set.tensors.push_back(tensor.is_cpu()
                              ? at::empty_like(tensor, tensor.options().device(device_).pinned_memory(false))
                              : tensor);
  }
  set.arrived = copies_->run([&] {
    for (size_t i = 0; i < read.tensors.size(); ++i) {
      if (read.tensors[i].is_cpu()) set.tensors[i].copy_(read.tensors[i], /*non_blocking=*/true);
    }
  });
  set.slab->copied = set.arrived;
  slabs_.push_back(std::move(set.slab));
}

}  // namespace fsdp::util
