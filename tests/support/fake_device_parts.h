#pragma once

// What FakeDevice is made of. None of it is ever destroyed: tensors may outlive every static.

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Allocator.h>

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "support/fake_device.h"

namespace fsdp::testing {

/// Memory of the device, as support/fake_device.h says.
class FakeMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* dest, const void* src, std::size_t count) const override;

  /// The block of `memory` must not be handed out again before what `stream` does now is over.
  void keep_for(const void* memory, StreamName stream);
  /// -1 for memory that is not the device's.
  int device_of(const void* memory) const;
  size_t live_bytes(int device) const;
  /// Gives the blocks that nobody has to the system.
  void trim();

 private:
  struct Block {
    void* memory = nullptr;
    size_t size = 0;
    StreamName stream;
    std::vector<StreamName> users;               ///< other streams that must be done with it
    std::vector<StreamRecorder::Event> awaited;  ///< where they were when it was freed
  };

  static void release(void* memory);
  void give_back(void* memory);
  Block take_free(StreamName stream, size_t size);

  mutable std::mutex mutex_;
  std::map<const void*, Block> live_;
  std::map<StreamName, std::map<size_t, std::vector<Block>>> free_;
  std::vector<Block> kept_;  ///< freed, but in use by other streams
};

/// Page-locked memory of the host.
class FakePinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* dest, const void* src, std::size_t count) const override;
  bool holds(const void* memory) const;

 private:
  static void release(void* memory);

  mutable std::mutex mutex_;
  std::map<const void*, size_t> blocks_;
};

/// Copies between the device and pinned memory for which the host has not waited.
class PendingCopies {
 public:
  void to_host(StreamName stream, const StreamRecorder::Moment& done, const at::Tensor& host,
               const at::Tensor& values);
  void from_host(StreamName stream, const StreamRecorder::Moment& done, const at::Tensor& host);
  /// `stream` is about to use memory of the host: copies that it knows to be over are.
  void before_use(StreamName stream, const at::Tensor& host);
  /// Ends the copies that the host knows to be over.
  void settle();
  void settle_all();
  /// Those under way whose memory of the host changed meanwhile.
  std::vector<std::string> disturbed();

 private:
  struct Copy {
    StreamName stream;
    StreamRecorder::Moment done;
    at::Tensor host;
    std::vector<char> bytes;
    bool to_host = false;
    MemoryRange range() const;
  };
  static void end(const Copy& copy);
  static std::optional<std::string> disturbance(const Copy& copy);

  std::mutex mutex_;
  std::vector<Copy> copies_;
};

/// Memory of the graphs of a pool: what one frees while it is recorded, the next may have.
class GraphMemory : public std::enable_shared_from_this<GraphMemory> {
 public:
  c10::DataPtr allocate(size_t bytes);

 private:
  struct Held;
  static void release(void* held);

  std::mutex mutex_;
  std::vector<c10::DataPtr> all_;
  std::map<size_t, std::vector<void*>> free_;
};

/// What this thread runs on the device, to be run again on the same addresses.
class LaunchRecording {
 public:
  explicit LaunchRecording(std::shared_ptr<GraphMemory> memory) : memory_(std::move(memory)) {}

  /// Of this thread; null: none.
  static LaunchRecording*& current();

  /// An operator that has run: its arguments by at_address(), and its results.
  void add(const c10::OperatorHandle& op, std::vector<c10::IValue> arguments,
           const std::vector<at::Tensor>& results, std::vector<MemoryRange> reads,
           std::vector<MemoryRange> writes);
  void add_copy(const at::Tensor& source, const at::Tensor& target, std::vector<MemoryRange> reads,
                std::vector<MemoryRange> writes);
  GraphMemory& memory() { return *memory_; }
  void run_again() const;

 private:
  std::vector<std::function<void(StreamName stream)>> launches_;
  std::shared_ptr<GraphMemory> memory_;
  int device_ = 0;
};

struct FakeDeviceParts {
  StreamRecorder recorder;
  FakeMemory memory;
  FakePinnedMemory pinned;
  PendingCopies copies;
  std::atomic<bool> behind{false}, host_forgets_events{false};
};

FakeDeviceParts& parts();

/// Of this thread.
StreamName current_stream(int device);
int current_device();

/// The host waits, and sees what was copied to it.
void host_waits(StreamName stream);

/// A tensor of the device as one of the CPU over the memory where it lies now, which it does not own.
at::Tensor at_address(const at::Tensor& tensor);

/// The bytes of the tensor's elements; none if it is empty.
std::vector<MemoryRange> ranges_of(const at::Tensor& tensor);

}  // namespace fsdp::testing
