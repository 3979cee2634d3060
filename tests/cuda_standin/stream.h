#pragma once

// Streams and events. What is put on a stream runs at once, in the calling thread, or with STANDIN_LATE in
// a thread of the stream, so that the host runs ahead as it does of a GPU.

#include <cuda_runtime_api.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "races.h"

namespace standin {
struct Capture;

/// The moment at which a stream came to an event.
struct Moment {
  std::atomic<bool> passed{false};
  double seconds = 0;
};

/// Time that has passed for events besides the clock's (STANDIN_FASTEST_ALGORITHM).
inline std::atomic<long> added_milliseconds = 0;
}  // namespace standin

struct CUstream_st {
  int device;
  unsigned flags;
  int priority;
  std::shared_ptr<standin::Capture> capture{};  ///< under way on this stream

  // Of a late stream.
  std::mutex mutex{};
  std::condition_variable changed{};
  std::deque<std::function<void()>> queue{};
  long queued = 0, done = 0;
  bool has_thread = false;
};

struct CUevent_st {
  int device;
  unsigned flags;
  std::shared_ptr<standin::Moment> moment{};    ///< null: never recorded, or in a capture
  standin::StreamClock known{};                 ///< what is over at that moment (races.h)
  std::shared_ptr<standin::Capture> capture{};  ///< in which it was recorded
  std::map<cudaStream_t, long> captured{};      ///< operations of the capture that come before it
};

namespace standin {

/// Null for a handle that is no stream.
CUstream_st* find_stream(cudaStream_t handle);
bool is_event(cudaEvent_t event);

/// Runs `work` in the order of the stream.
void put(CUstream_st* stream, std::function<void()> work);

/// Whose work the calling thread runs; null: of none.
CUstream_st* running_stream();

void wait_for(CUstream_st* stream);
/// For all streams of a device.
void wait_for_device(int index);

/// All streams that are not destroyed, without the default ones.
const std::set<CUstream_st*>& streams();

/// Time that a kernel or copy takes in a late stream.
void take_time(long microseconds);

/// An operation on a stream: into the graph if the stream is captured. Of a kernel, CUDA asks that the
/// stream's device be the current one.
enum class Kind { kKernel, kOther };
cudaError_t submit(const char* who, cudaStream_t handle, Kind kind, std::function<void()> work);

}  // namespace standin
