#include "shard/buffer_pool.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "util/block_choice.h"

namespace fsdp::shard {

const char* kind_name(BufferKind kind) {
  if (kind == BufferKind::kParameters) return "parameters";
  return kind == BufferKind::kGradients ? "gradients" : "communication";
}

/// What a DataPtr holds on to.
struct BufferPool::Lease {
  std::shared_ptr<BufferPool> pool;
  at::Tensor block;
  int64_t nbytes;
  BufferKind kind;

  static void give_back(void* lease) {
    std::unique_ptr<Lease> owned(static_cast<Lease*>(lease));
    owned->pool->release(*owned);
  }
};

c10::DataPtr BufferPool::acquire(int64_t nbytes, BufferKind kind) {
  std::lock_guard lock(mutex_);
  at::Tensor block = take_block(nbytes);
  account_.live_of(kind) += nbytes;
  note_peaks();
  auto lease = std::make_unique<Lease>(Lease{shared_from_this(), std::move(block), nbytes, kind});
  void* data = lease->block.data_ptr();
  at::Device device = lease->block.device();
  return {data, lease.release(), &Lease::give_back, device};
}

at::Tensor BufferPool::acquire_tensor(int64_t numel, at::ScalarType dtype, BufferKind kind) {
  int64_t nbytes = numel * static_cast<int64_t>(c10::elementSize(dtype));
  c10::DataPtr memory = acquire(nbytes, kind);
  at::TensorOptions options = at::TensorOptions().dtype(dtype).device(memory.device());
  c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(nbytes), std::move(memory));
  return at::empty({0}, options).set_(storage, 0, {numel}, {1});
}

at::Tensor BufferPool::take_block(int64_t nbytes) {
  std::vector<int64_t> waiting;
  for (const at::Tensor& block : free_blocks_) waiting.push_back(block.numel());
  int64_t most = std::max(account_.peak, account_.live() + nbytes);
  const util::BlockChoice choice = util::choose_block(waiting, nbytes, held_bytes_, most);
  if (choice.reuse) {
    auto place = free_blocks_.begin() + static_cast<std::ptrdiff_t>(*choice.reuse);
    at::Tensor block = std::move(*place);
    free_blocks_.erase(place);
    return block;
  }
  for (size_t i = 0; i < choice.give_up; ++i) held_bytes_ -= waiting[i];
  free_blocks_.erase(free_blocks_.begin(),
                     free_blocks_.begin() + static_cast<std::ptrdiff_t>(choice.give_up));
  at::Tensor block = communicator_->allocate(nbytes, at::kByte);
  held_bytes_ += nbytes;
  return block;
}

void BufferPool::release(Lease& lease) {
  std::lock_guard lock(mutex_);
  account_.live_of(lease.kind) -= lease.nbytes;
  free_blocks_.push_back(std::move(lease.block));
}

BufferAccount BufferPool::account() const {
  std::lock_guard lock(mutex_);
  return account_;
}

void BufferPool::reset_peaks() {
  std::lock_guard lock(mutex_);
  account_.peak_parameters = account_.peak_gradients = account_.peak_communication = account_.peak = 0;
  note_peaks();
}

void BufferPool::note_peaks() {
  account_.peak_parameters = std::max(account_.peak_parameters, account_.live_parameters);
  account_.peak_gradients = std::max(account_.peak_gradients, account_.live_gradients);
  account_.peak_communication = std::max(account_.peak_communication, account_.live_communication);
  account_.peak = std::max(account_.peak, account_.live());
}

int64_t BufferPool::held_bytes() const {
  std::lock_guard lock(mutex_);
  return held_bytes_;
}

void BufferPool::trim() {
  std::lock_guard lock(mutex_);
  for (const at::Tensor& block : free_blocks_) held_bytes_ -= block.numel();
  free_blocks_.clear();
}

}  // namespace fsdp::shard
