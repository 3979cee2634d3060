#include "shard/buffer_pool.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstddef>
#include <optional>

namespace fsdp::shard {

const char* kind_name(BufferKind kind) {
  if (kind == BufferKind::kParameters) return "parameters";
  return kind == BufferKind::kGradients ? "gradients" : "communication";
}

/// What a DataPtr holds on to.
struct BufferPool::Lease {
  std::shared_ptr<BufferPool> pool;
  at::Tensor memory;  ///< the arena, or the buffer's own
  util::Arena::Place place;
  BufferKind kind;

  static void give_back(void* lease) {
    std::unique_ptr<Lease> owned(static_cast<Lease*>(lease));
    owned->pool->release(*owned);
  }
};

struct BufferPool::Counted {
  std::shared_ptr<BufferPool> pool;
  c10::DataPtr memory;
  int64_t nbytes;
  BufferKind kind;

  static void give_back(void* counted) {
    std::unique_ptr<Counted> owned(static_cast<Counted*>(counted));
    std::lock_guard lock(owned->pool->mutex_);
    owned->pool->account_.live_of(owned->kind) -= owned->nbytes;
  }
};

c10::DataPtr BufferPool::count(c10::DataPtr memory, int64_t nbytes, BufferKind kind) {
  void* data = memory.get();
  const at::Device device = memory.device();
  auto counted = std::make_unique<Counted>(Counted{shared_from_this(), std::move(memory), nbytes, kind});
  std::lock_guard lock(mutex_);
  account_.live_of(kind) += nbytes;
  note_peaks();
  return {data, counted.release(), &Counted::give_back, device};
}

c10::DataPtr BufferPool::acquire(int64_t nbytes, BufferKind kind) {
  std::lock_guard lock(mutex_);
  if (places_.live() == 0) grow_arena();
  const auto sort = kind == BufferKind::kGradients ? util::Arena::Sort::kSecond : util::Arena::Sort::kFirst;
  auto lease = std::make_unique<Lease>(Lease{shared_from_this(), arena_, places_.take(nbytes, sort), kind});
  int64_t offset = lease->place.offset;
  if (lease->place.is_outside) {
    try {
      lease->memory = communicator_->allocate(nbytes, at::kByte);
    } catch (...) {
      places_.give_back(lease->place);
      throw;
    }
    offset = 0;
    outside_bytes_ += nbytes;
  }
  account_.live_of(kind) += nbytes;
  note_peaks();
  at::Device device = lease->memory.device();
  auto* data = static_cast<std::byte*>(lease->memory.data_ptr()) + offset;
  return {data, lease.release(), &Lease::give_back, device};
}

at::Tensor BufferPool::acquire_tensor(int64_t numel, at::ScalarType dtype, BufferKind kind) {
  int64_t nbytes = numel * static_cast<int64_t>(c10::elementSize(dtype));
  c10::DataPtr memory = acquire(nbytes, kind);
  at::TensorOptions options = at::TensorOptions().dtype(dtype).device(memory.device());
  c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(nbytes), std::move(memory));
  return at::empty({0}, options).set_(storage, 0, {numel}, {1});
}

void BufferPool::grow_arena() {
  const std::optional<int64_t> bytes = places_.longer();
  if (!bytes) return;
  arena_.reset();  // before there is the next one
  places_.clear();
  arena_ = communicator_->allocate(*bytes, at::kByte);
  places_.grow();
}

void BufferPool::reserve(const util::Arena::Shape& shape) {
  std::lock_guard lock(mutex_);
  places_.reserve(shape);
}

void BufferPool::release(Lease& lease) {
  std::lock_guard lock(mutex_);
  account_.live_of(lease.kind) -= lease.place.bytes;
  if (lease.place.is_outside) outside_bytes_ -= lease.place.bytes;
  places_.give_back(lease.place);
  lease.memory.reset();
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
  return places_.length() + outside_bytes_;
}

void BufferPool::trim() {
  std::lock_guard lock(mutex_);
  if (places_.live() > 0) return;
  arena_.reset();
  places_.clear();
}

}  // namespace fsdp::shard
