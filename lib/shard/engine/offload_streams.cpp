#include "shard/engine/offload_streams.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/device/pinned_memory.h"
#include "base/util/error.h"

namespace fsdp::shard {

OffloadStreams::OffloadStreams(at::Device device)
    : device_(device),
      to_device_({.name = "fsdp to device", .device = device}),
      to_host_({.name = "fsdp to host", .device = device}) {
  FSDP_CHECK(!device_.is_cpu());
}

void OffloadStreams::expect_shard(int64_t bytes) { largest_shard_ = std::max(largest_shard_, bytes); }

OffloadStreams::SentShard& OffloadStreams::send(const at::Tensor& shard) {
  const auto bytes = static_cast<int64_t>(shard.nbytes());
  FSDP_CHECK(bytes <= largest_shard_);
  SentShard& place = places_[next_];
  next_ = (next_ + 1) % places_.size();
  const bool is_new = !place.memory_.defined();
  if (is_new) {
    place.memory_ = at::empty({largest_shard_}, at::TensorOptions().dtype(at::kByte).device(device_));
  }
  place.values = place.memory_.narrow(0, 0, bytes).view(shard.scalar_type());
  auto copy = [values = place.values, shard, left = std::shared_ptr<comm::Work>(std::move(place.left))] {
    if (left) left->wait();
    values.copy_(shard, /*non_blocking=*/true);
  };
  // New memory may still be in use by earlier work of the caller's stream.
  place.there = is_new ? to_device_.run(std::move(copy)) : to_device_.run_apart(std::move(copy));
  return place;
}

util::Event OffloadStreams::receive(std::function<void()> copy) {
  return to_host_.run_apart(std::move(copy));
}

at::Tensor OffloadStreams::copy_to_host(const at::Tensor& gradient) {
  const auto fits = [&](const at::Tensor& memory) {
    return memory.use_count() == 1 && memory.storage().use_count() == 1 &&
           memory.scalar_type() == gradient.scalar_type() && memory.numel() == gradient.numel();
  };
  auto memory = std::ranges::find_if(on_host_, fits);
  if (memory == on_host_.end()) {
    on_host_.push_back(util::empty_pinned(gradient.numel(), gradient.scalar_type(), device_));
    memory = std::prev(on_host_.end());
  }
  return memory->copy_(gradient, /*non_blocking=*/true);
}

util::Event OffloadStreams::then(std::function<void()> task) {
  if (!thread_) {
    thread_ = std::make_unique<util::Stream>(util::StreamOptions{.name = "fsdp gradients"});
  }
  return thread_->run(std::move(task));
}

void OffloadStreams::drain() {
  if (!thread_) return;
  try {
    then([] {}).wait();
  } catch (const std::exception&) {
    // The event of the earlier task that failed throws the exception too.
  }
}

void OffloadStreams::reset() {
  drain();
  thread_.reset();
}

}  // namespace fsdp::shard
