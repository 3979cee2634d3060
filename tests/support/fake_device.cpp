#include "support/fake_device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/util/error.h"
#include "support/fake_device_parts.h"

namespace fsdp::testing {
namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

/// Tensors with more pieces than this are taken for all between their first and last element.
constexpr int64_t kPieces = 1 << 16;

thread_local int device_of_thread = 0;
thread_local std::array<int64_t, FakeDevice::kCount> stream_of_thread{};

c10::Device device_at(int index) { return {kType, static_cast<c10::DeviceIndex>(index)}; }

int index_of(const c10::Device& device) {
  FSDP_CHECK(device.type() == kType && device.index() < FakeDevice::kCount, device.str());
  return device.has_index() ? device.index() : device_of_thread;
}

c10::Stream stream_at(StreamName name) {
  return c10::Stream(c10::Stream::UNSAFE, device_at(name.device), name.id);
}

StreamName name_of(const c10::Stream& stream) { return {index_of(stream.device()), stream.id()}; }

/// What an Event points to.
struct RecordedEvent {
  StreamRecorder::Event event;
  std::chrono::steady_clock::time_point at;
};

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return device_at(std::exchange(device_of_thread, index_of(device)));
  }
  c10::Device getDevice() const override { return device_at(device_of_thread); }
  void setDevice(c10::Device device) const override { device_of_thread = index_of(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) device_of_thread = device.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override { return FakeDevice::kCount; }

  c10::Stream getStream(c10::Device device) const override {
    return stream_at(current_stream(index_of(device)));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_at({index_of(device), 0}); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    static std::atomic<int64_t> next{1};
    return stream_at({index_of(device), next++});
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return getStreamFromGlobalPool(device, false);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const StreamName name = name_of(stream);
    return stream_at(
        {name.device, std::exchange(stream_of_thread.at(static_cast<size_t>(name.device)), name.id)});
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    if (*event == nullptr) *event = new RecordedEvent;
    auto& recorded = *static_cast<RecordedEvent*>(*event);
    recorded.at = std::chrono::steady_clock::now();
    parts().recorder.record(name_of(stream), recorded.event);
  }
  void block(void* event, const c10::Stream& stream) const override {
    parts().recorder.wait(name_of(stream), recorded(event).event);
  }
  bool queryEvent(void* event) const override {
    if (parts().behind) return parts().recorder.known(kHost, recorded(event).event);
    synchronizeEvent(event);
    return true;
  }
  void synchronizeEvent(void* event) const override {
    if (parts().host_forgets_events) return;
    parts().recorder.wait(kHost, recorded(event).event);
    parts().copies.settle();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<RecordedEvent*>(event);
  }
  double elapsedTime(void* begin, void* end, const c10::DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>(recorded(end).at - recorded(begin).at).count();
  }

  bool queryStream(const c10::Stream& stream) const override {
    if (!parts().behind) {
      synchronizeStream(stream);
      return true;
    }
    return parts().recorder.host_knows_all_of(name_of(stream));
  }
  void synchronizeStream(const c10::Stream& stream) const override { host_waits(name_of(stream)); }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    parts().recorder.host_waits_for_device(device);
    parts().copies.settle();
  }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    parts().memory.keep_for(memory.get(), name_of(stream));
  }

 private:
  static const RecordedEvent& recorded(void* event) { return *static_cast<RecordedEvent*>(event); }
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return FakeDevice::kCount; }
  void setCurrentDevice(c10::DeviceIndex device) const override { device_of_thread = device; }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(device_of_thread);
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return static_cast<c10::DeviceIndex>(std::exchange(device_of_thread, device));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  bool isPinnedPtr(const void* memory) const override { return parts().pinned.holds(memory); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &parts().pinned; }
  at::Device getDeviceFromPtr(void* memory) const override {
    const int device = parts().memory.device_of(memory);
    return device < 0 ? at::Device(at::kCPU) : device_at(device);
  }
  // Operators that draw numbers run on the CPU, as their generator does.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::detail::createCPUGenerator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    c10::DataPtr memory = parts().memory.allocate(bytes);
    const size_t kept = std::min(bytes, storage.nbytes());
    if (kept > 0) parts().memory.copy_data(memory.get(), storage.data(), kept);
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)
c10::AllocatorRegisterer<kType> register_memory(&parts().memory);

void append_pieces(std::vector<MemoryRange>& pieces, uintptr_t begin, size_t run,
                   const std::vector<std::pair<int64_t, int64_t>>& dims, size_t dim) {
  if (dim == dims.size()) {
    pieces.push_back({begin, begin + run});
    return;
  }
  const auto [stride, size] = dims[dim];
  for (int64_t i = 0; i < size; ++i) {
    append_pieces(pieces, begin + static_cast<uintptr_t>(i * stride), run, dims, dim + 1);
  }
}

}  // namespace

FakeDeviceParts& parts() {
  static auto* parts = new FakeDeviceParts;
  return *parts;
}

StreamName current_stream(int device) { return {device, stream_of_thread.at(static_cast<size_t>(device))}; }

int current_device() { return device_of_thread; }

void host_waits(StreamName stream) {
  parts().recorder.host_waits_for(stream);
  parts().copies.settle();
}

std::vector<MemoryRange> ranges_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.numel() == 0) return {};
  const auto item = static_cast<int64_t>(tensor.element_size());
  const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride in bytes, size
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) > 1 && tensor.stride(i) > 0)
      dims.emplace_back(tensor.stride(i) * item, tensor.size(i));
  }
  std::sort(dims.begin(), dims.end());
  int64_t run = item, pieces = 1, span = item;
  while (!dims.empty() && dims.front().first == run) {
    run *= dims.front().second;
    dims.erase(dims.begin());
  }
  span = run;
  for (const auto& [stride, size] : dims) {
    pieces *= size;
    span += stride * (size - 1);
  }
  if (pieces > kPieces) return {{begin, begin + static_cast<uintptr_t>(span)}};
  std::vector<MemoryRange> ranges;
  append_pieces(ranges, begin, static_cast<size_t>(run), dims, 0);
  return ranges;
}

FakeDevice& FakeDevice::get() {
  static auto* device = new FakeDevice;
  return *device;
}

FakeDevice::FakeDevice() {
  c10::register_privateuse1_backend("fake");
  at::RegisterPrivateUse1HooksInterface(new Hooks);
}

at::Device FakeDevice::device(int index) const { return device_at(index); }

at::TensorOptions FakeDevice::options(at::ScalarType dtype, int index) const {
  return at::TensorOptions().dtype(dtype).device(device(index));
}

c10::Stream FakeDevice::new_stream(int index) const {
  return Guard().getStreamFromGlobalPool(device(index), false);
}

c10::Stream FakeDevice::current_stream(int index) const { return Guard().getStream(device(index)); }

StreamName FakeDevice::name(const c10::Stream& stream) { return name_of(stream); }

void FakeDevice::begin() {
  parts().copies.settle_all();
  parts().memory.trim();
  parts().recorder.begin();
}

std::vector<std::string> FakeDevice::races() {
  std::vector<std::string> races = parts().recorder.races();
  for (std::string& text : parts().copies.disturbed()) races.push_back(std::move(text));
  return races;
}

std::string FakeDevice::report() {
  std::string lines;
  for (const std::string& race : races()) lines += race + "\n";
  return lines;
}

std::vector<Entry> FakeDevice::log() { return parts().recorder.log(); }

void FakeDevice::observe(std::function<void(size_t entry)> observer) {
  parts().recorder.observe(std::move(observer));
}

void FakeDevice::note_access(const c10::Stream& stream, const void* memory, size_t bytes, Access access,
                             const std::string& what) {
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  std::vector<MemoryRange> ranges{{begin, begin + bytes}}, none;
  const bool writes = access == Access::kWrite;
  parts().recorder.operation(name_of(stream), what, writes ? none : ranges, writes ? ranges : none);
}

void FakeDevice::note_host_access(const void* memory, size_t bytes, Access access, const std::string& what) {
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  std::vector<MemoryRange> ranges{{begin, begin + bytes}}, none;
  const bool writes = access == Access::kWrite;
  parts().recorder.operation(kHost, what, writes ? none : ranges, writes ? ranges : none);
}

void FakeDevice::set_behind(bool behind) { parts().behind = behind; }

void FakeDevice::set_host_forgets_events(bool forgets) { parts().host_forgets_events = forgets; }

size_t FakeDevice::live_bytes(int index) const { return parts().memory.live_bytes(index); }

}  // namespace fsdp::testing
