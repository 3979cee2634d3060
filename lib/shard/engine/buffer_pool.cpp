#include "shard/engine/buffer_pool.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <optional>

namespace fsdp::shard {

const char* kind_name(BufferKind kind) {
  if (kind == BufferKind::kParameters) return "parameters";
  return kind == BufferKind::kGradients ? "gradients" : "communication";
}

/// The context of a DataPtr; gives the memory back when it is destroyed.
struct BufferPool::Lease {
  std::shared_ptr<BufferPool> pool;
  int64_t nbytes = 0;
  BufferKind kind = {};
  std::optional<util::Arena::Allocation> place = {};  ///< unless the memory is only counted
  at::Tensor own = {};                                ///< the arena, or the buffer's own memory
  c10::DataPtr counted = {};

  static void give_back(void* lease) {
    std::unique_ptr<Lease> owned(static_cast<Lease*>(lease));
    BufferPool& pool = *owned->pool;
    std::lock_guard lock(pool.mutex_);
    pool.account_.live_of(owned->kind) -= owned->nbytes;
    if (!owned->place) return;
    if (owned->place->is_outside) pool.outside_bytes_ -= owned->nbytes;
    pool.places_.give_back(*owned->place);
    owned->own.reset();
  }
};

c10::DataPtr BufferPool::lend(std::unique_ptr<Lease> lease, void* data, at::Device device) {
  account_.live_of(lease->kind) += lease->nbytes;
  note_peaks();
  return {data, lease.release(), &Lease::give_back, device};
}

c10::DataPtr BufferPool::count(c10::DataPtr memory, int64_t nbytes, BufferKind kind) {
  void* data = memory.get();
  const at::Device device = memory.device();
  auto lease = std::make_unique<Lease>(
      Lease{.pool = shared_from_this(), .nbytes = nbytes, .kind = kind, .counted = std::move(memory)});
  std::lock_guard lock(mutex_);
  return lend(std::move(lease), data, device);
}

BufferPool::~BufferPool() {
  if (!arena_.defined() || arena_.is_cpu()) return;
  try {
    const at::Device device = arena_.device();
    arena_.record_stream(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  } catch (const std::exception&) {
    // A device that has failed; the arena is released with the pool.
  }
}

c10::DataPtr BufferPool::acquire(int64_t nbytes, BufferKind kind) {
  std::lock_guard lock(mutex_);
  if (places_.live() == 0) grow_arena();
  const auto sort = kind == BufferKind::kGradients ? util::Arena::Sort::kSecond : util::Arena::Sort::kFirst;
  auto lease = std::make_unique<Lease>(Lease{.pool = shared_from_this(),
                                             .nbytes = nbytes,
                                             .kind = kind,
                                             .place = places_.take(nbytes, sort),
                                             .own = arena_});
  int64_t offset = lease->place->offset;
  if (lease->place->is_outside) {
    try {
      lease->own = communicator_->allocate(nbytes, at::kByte);
    } catch (...) {
      places_.give_back(*lease->place);
      throw;
    }
    offset = 0;
    outside_bytes_ += nbytes;
  }
  void* data = static_cast<std::byte*>(lease->own.data_ptr()) + offset;
  const at::Device device = lease->own.device();
  return lend(std::move(lease), data, device);
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
  arena_.reset();  // before the next one is allocated
  places_.clear();
  arena_ = communicator_->allocate(*bytes, at::kByte);
  places_.grow();
}

void BufferPool::reserve(const util::Arena::Shape& shape) {
  std::lock_guard lock(mutex_);
  places_.reserve(shape);
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

}  // namespace fsdp::shard
