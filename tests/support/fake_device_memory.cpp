// Memory of FakeDevice: its allocators, and copies to and from the host that are under way.

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/util/error.h"
#include "support/fake_device_parts.h"

namespace fsdp::testing {
namespace {

constexpr size_t kAlignment = 512;
constexpr int kPoison = 0xff;

MemoryRange range_of(const void* memory, size_t size) {
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  return {begin, begin + size};
}

void* system_memory(size_t size) {
  void* memory = std::aligned_alloc(kAlignment, size);
  FSDP_CHECK(memory != nullptr, size, " bytes");
  std::memset(memory, kPoison, size);
  return memory;
}

size_t rounded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

c10::DataPtr FakeMemory::allocate(size_t bytes) {
  if (LaunchRecording* recording = LaunchRecording::current()) return recording->memory().allocate(bytes);
  const int device = current_device();
  const c10::Device place(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device));
  if (bytes == 0) return {nullptr, nullptr, &release, place};
  std::lock_guard lock(mutex_);
  Block block = take_free(current_stream(device), rounded(bytes));
  parts().recorder.allocate(block.stream, range_of(block.memory, block.size));
  void* memory = block.memory;
  live_[memory] = std::move(block);
  return {memory, memory, &release, place};
}

FakeMemory::Block FakeMemory::take_free(StreamName stream, size_t size) {
  for (size_t i = 0; i < kept_.size();) {
    Block& block = kept_[i];
    const bool over =
        std::all_of(block.awaited.begin(), block.awaited.end(),
                    [](const StreamRecorder::Event& event) { return parts().recorder.known(kHost, event); });
    if (over) {
      block.awaited.clear();
      free_[block.stream][block.size].push_back(std::move(block));
      kept_.erase(kept_.begin() + static_cast<long>(i));
    } else {
      ++i;
    }
  }
  auto& sizes = free_[stream];
  // The block that was freed last, also if it is somewhat too large: the sooner memory is used again, the
  // more mistakes show.
  auto fitting = sizes.lower_bound(size);
  if (fitting == sizes.end() || fitting->first > 2 * size) {
    return {.memory = system_memory(size), .size = size, .stream = stream, .users = {}, .awaited = {}};
  }
  Block block = std::move(fitting->second.back());
  fitting->second.pop_back();
  if (fitting->second.empty()) sizes.erase(fitting);
  return block;
}

void FakeMemory::release(void* memory) {
  if (memory != nullptr) parts().memory.give_back(memory);
}

void FakeMemory::give_back(void* memory) {
  std::lock_guard lock(mutex_);
  auto place = live_.find(memory);
  FSDP_CHECK(place != live_.end(), "memory that is not the device's");
  Block block = std::move(place->second);
  live_.erase(place);
  std::memset(memory, kPoison, block.size);
  StreamRecorder& recorder = parts().recorder;
  for (const StreamName& user : block.users) recorder.record(user, block.awaited.emplace_back());
  block.users.clear();
  recorder.free(block.stream, range_of(memory, block.size));
  if (block.awaited.empty()) {
    free_[block.stream][block.size].push_back(std::move(block));
  } else {
    kept_.push_back(std::move(block));
  }
}

void FakeMemory::copy_data(void* dest, const void* src, std::size_t count) const {
  default_copy_data(dest, src, count);
}

void FakeMemory::keep_for(const void* memory, StreamName stream) {
  std::lock_guard lock(mutex_);
  auto next = live_.upper_bound(memory);
  if (next == live_.begin()) return;
  Block& block = std::prev(next)->second;
  const bool inside = range_of(memory, 1).overlaps(range_of(block.memory, block.size));
  if (!inside || block.stream == stream) return;
  if (std::count(block.users.begin(), block.users.end(), stream) == 0) block.users.push_back(stream);
}

int FakeMemory::device_of(const void* memory) const {
  std::lock_guard lock(mutex_);
  auto next = live_.upper_bound(memory);
  if (next == live_.begin()) return -1;
  const Block& block = std::prev(next)->second;
  return range_of(memory, 1).overlaps(range_of(block.memory, block.size)) ? block.stream.device : -1;
}

size_t FakeMemory::live_bytes(int device) const {
  std::lock_guard lock(mutex_);
  size_t sum = 0;
  for (const auto& [memory, block] : live_) sum += block.stream.device == device ? block.size : 0;
  return sum;
}

void FakeMemory::trim() {
  std::lock_guard lock(mutex_);
  for (auto& [stream, sizes] : free_) {
    for (auto& [size, blocks] : sizes) {
      for (const Block& block : blocks) std::free(block.memory);
    }
  }
  free_.clear();
  for (const Block& block : kept_) std::free(block.memory);
  kept_.clear();
}

c10::DataPtr FakePinnedMemory::allocate(size_t bytes) {
  if (bytes == 0) return {nullptr, nullptr, &release, at::kCPU};
  void* memory = system_memory(rounded(bytes));
  std::lock_guard lock(mutex_);
  blocks_[memory] = rounded(bytes);
  return {memory, memory, &release, at::kCPU};
}

void FakePinnedMemory::release(void* memory) {
  if (memory == nullptr) return;
  FakePinnedMemory& pinned = parts().pinned;
  std::lock_guard lock(pinned.mutex_);
  pinned.blocks_.erase(memory);
  std::free(memory);
}

void FakePinnedMemory::copy_data(void* dest, const void* src, std::size_t count) const {
  default_copy_data(dest, src, count);
}

bool FakePinnedMemory::holds(const void* memory) const {
  std::lock_guard lock(mutex_);
  auto next = blocks_.upper_bound(memory);
  if (next == blocks_.begin()) return false;
  const auto& [begin, size] = *std::prev(next);
  return range_of(memory, 1).overlaps(range_of(begin, size));
}

MemoryRange PendingCopies::Copy::range() const { return range_of(host.const_data_ptr(), host.nbytes()); }

void PendingCopies::to_host(StreamName stream, const StreamRecorder::Moment& done, const at::Tensor& host,
                            const at::Tensor& values) {
  const auto* from = static_cast<const char*>(values.const_data_ptr());
  Copy copy{
      .stream = stream, .done = done, .host = host, .bytes = {from, from + host.nbytes()}, .to_host = true};
  std::memset(host.mutable_data_ptr(), kPoison, host.nbytes());
  std::lock_guard lock(mutex_);
  copies_.push_back(std::move(copy));
}

void PendingCopies::from_host(StreamName stream, const StreamRecorder::Moment& done, const at::Tensor& host) {
  const auto* from = static_cast<const char*>(host.const_data_ptr());
  std::lock_guard lock(mutex_);
  copies_.push_back({.stream = stream,
                     .done = done,
                     .host = host,
                     .bytes = {from, from + host.nbytes()},
                     .to_host = false});
}

void PendingCopies::before_use(StreamName stream, const at::Tensor& host) {
  const MemoryRange used = range_of(host.const_data_ptr(), host.nbytes());
  std::lock_guard lock(mutex_);
  std::erase_if(copies_, [&](const Copy& copy) {
    if (!copy.range().overlaps(used)) return false;
    if (!parts().recorder.known(stream, copy.done)) {
      parts().recorder.add_race(concat(stream.text(), " uses memory of the host that is copied ",
                                       copy.to_host ? "to" : "from", " on ", copy.stream.text(),
                                       ", in no order"));
    }
    end(copy);
    return true;
  });
}

void PendingCopies::settle() {
  std::lock_guard lock(mutex_);
  std::erase_if(copies_, [](const Copy& copy) {
    if (!parts().recorder.known(kHost, copy.done)) return false;
    end(copy);
    return true;
  });
}

void PendingCopies::settle_all() {
  std::lock_guard lock(mutex_);
  for (const Copy& copy : copies_) end(copy);
  copies_.clear();
}

std::vector<std::string> PendingCopies::disturbed() {
  std::lock_guard lock(mutex_);
  std::vector<std::string> texts;
  for (const Copy& copy : copies_) {
    if (auto text = disturbance(copy)) texts.push_back(*text);
  }
  return texts;
}

void PendingCopies::end(const Copy& copy) {
  if (auto text = disturbance(copy)) parts().recorder.add_race(*text);
  if (copy.to_host) std::memcpy(copy.host.mutable_data_ptr(), copy.bytes.data(), copy.bytes.size());
}

std::optional<std::string> PendingCopies::disturbance(const Copy& copy) {
  const auto* now = static_cast<const char*>(copy.host.const_data_ptr());
  const bool left_alone = copy.to_host
                              ? std::all_of(now, now + copy.bytes.size(),
                                            [](char byte) { return byte == static_cast<char>(kPoison); })
                              : std::equal(copy.bytes.begin(), copy.bytes.end(), now);
  if (left_alone) return std::nullopt;
  return concat("the host changed ", copy.bytes.size(), " bytes while they were copied ",
                copy.to_host ? "to" : "from", " on ", copy.stream.text());
}

}  // namespace fsdp::testing
