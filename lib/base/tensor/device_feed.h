#pragma once

// DeviceFeed: sets of tensors, such as batches, read ahead and copied to a device in the background.
//
//   a thread             reads a set and writes it to a slab: pinned memory that serves one set after another
//   a stream for copies  copies the slab to the device, beside the computation
//   the caller's stream  waits for that copy, by an event, when the caller takes the set
//
// Memory of the device is allocated on the caller's stream, and a copy begins after all work issued there
// before. So no earlier work still uses that memory, and the caller may free its tensors like any others. A
// slab is written again only after its copy has ended. On the CPU there is nothing to copy: the caller gets
// the tensors that were read.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "base/tensor/stream.h"
#include "base/util/work_queue.h"

namespace fsdp::util {

/// Options of a DeviceFeed.
struct DeviceFeedOptions {
  at::Device device = at::kCPU;
  bool has_thread = true;  ///< whether a background thread reads; off: add() reads
  size_t sent_ahead = 1;   ///< sets that are on the device or on their way, besides those taken
};

/// Used by one thread. The destructor waits for the read under way and discards the others.
class DeviceFeed {
 public:
  using Tensors = std::vector<at::Tensor>;

  explicit DeviceFeed(const DeviceFeedOptions& options);
  ~DeviceFeed();
  DeviceFeed(const DeviceFeed&) = delete;
  DeviceFeed& operator=(const DeviceFeed&) = delete;

  /// Appends a set. `read` runs on the thread, in the order of the calls, and without autograd.
  void add(std::function<Tensors()> read);

  /// Returns the oldest set, on the device (tensors that are not in host memory stay where they are). Then
  /// issues the copies of the next sets that have been read. Throws exceptions of the set's `read`.
  Tensors take();

  /// Number of sets that can be taken.
  size_t size() const { return sets_.size(); }

  /// Discards all sets.
  void clear();

 private:
  /// Pinned memory of one set at a time.
  struct Slab {
    at::Tensor memory;  ///< [bytes]
    Event copied;
  };
  struct ReadSet {
    Tensors tensors;
    std::exception_ptr failure;
  };
  struct Set {
    std::shared_ptr<Slab> slab;
    std::future<ReadSet> read;
    Tensors tensors = {};  ///< on the device, once sent
    Event arrived = {};
    std::exception_ptr failure = nullptr;
    bool is_sent = false;
  };

  static void write_to(Slab& slab, Tensors& tensors, at::Device device);
  std::shared_ptr<Slab> slab_to_write();
  void send(Set& set);

  at::Device device_;
  size_t sent_ahead_;
  std::optional<Stream> copies_;             ///< none on the CPU
  std::deque<std::shared_ptr<Slab>> slabs_;  ///< slabs whose copies were issued, the oldest first
  std::deque<Set> sets_;
  WorkQueue<ReadSet> queue_;  ///< stopped first
};

}  // namespace fsdp::util
