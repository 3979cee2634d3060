#include "stream.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "capture.h"
#include "device.h"
#include "report.h"
#include "settings.h"

namespace standin {
namespace {

std::set<CUstream_st*>& all_streams() {
  static auto* streams = new std::set<CUstream_st*>;
  return *streams;
}

thread_local CUstream_st* running = nullptr;

void run_on(CUstream_st* stream, const std::function<void()>& work) {
  CUstream_st* const before = std::exchange(running, stream);
  work();
  running = before;
}

/// The thread of a late stream. It never ends: a stream of a process that ends may wait for a peer for
/// ever.
void serve(CUstream_st* stream) {
  ::pthread_setname_np(::pthread_self(), ("stream on " + std::to_string(stream->device)).c_str());
  // Streams sleep at other times on each rank.
  static std::atomic<unsigned> streams_before{0};
  std::minstd_rand draw(static_cast<unsigned>(settings().seed) * 1000 + std::stoul(settings().rank) * 100 +
                        streams_before++);
  std::bernoulli_distribution sleeps(0.05);
  std::uniform_int_distribution<useconds_t> duration(0, 2000);
  std::unique_lock lock(stream->mutex);
  for (;;) {
    stream->changed.wait(lock, [stream] { return !stream->queue.empty(); });
    std::function<void()> work = std::move(stream->queue.front());
    stream->queue.pop_front();
    lock.unlock();
    if (settings().seed > 0 && sleeps(draw)) ::usleep(duration(draw));
    run_on(stream, work);
    work = nullptr;
    lock.lock();
    ++stream->done;
    stream->changed.notify_all();
  }
}

bool is_idle(CUstream_st* stream) {
  std::lock_guard lock(stream->mutex);
  return stream->done >= stream->queued;
}

cudaError_t no_stream(const char* who) {
  violation(std::string(who) + " of what is no stream");
  return failed(cudaErrorInvalidResourceHandle);
}

/// Whether the host may look at this stream now.
cudaError_t refused_look(const char* who, CUstream_st* stream) {
  if (stream == nullptr) return no_stream(who);
  if (stream->capture) {
    return spoil(*stream->capture, cudaErrorStreamCaptureUnsupported,
                 std::string(who) + " of a stream that is captured");
  }
  return refused_in_capture(who);
}

}  // namespace

const std::set<CUstream_st*>& streams() { return all_streams(); }

CUstream_st* find_stream(cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread) {
    return device(current_device()).default_stream;
  }
  Lock lock(mutex());
  return all_streams().contains(handle) ? handle : nullptr;
}

void put(CUstream_st* stream, std::function<void()> work) {
  if (!settings().late) {
    run_on(stream, work);
    return;
  }
  std::lock_guard lock(stream->mutex);
  if (!std::exchange(stream->has_thread, true)) std::thread(serve, stream).detach();
  stream->queue.push_back(std::move(work));
  ++stream->queued;
  stream->changed.notify_all();
}

CUstream_st* running_stream() { return running; }

void wait_for(CUstream_st* stream) {
  {
    std::unique_lock lock(stream->mutex);
    const long until = stream->queued;
    stream->changed.wait(lock, [&] { return stream->done >= until; });
  }
  host_waited_for(stream);
}

void wait_for_device(int index) {
  std::vector<CUstream_st*> waited;
  {
    Lock lock(mutex());
    for (CUstream_st* stream : all_streams()) {
      if (stream->device == index) waited.push_back(stream);
    }
    waited.push_back(device(index).default_stream);
  }
  for (CUstream_st* stream : waited) wait_for(stream);
}

void take_time(long microseconds) {
  constexpr long kShortest = 200;  // of a sleep, or else its own cost would count
  thread_local long owed = 0;
  if (!settings().late) return;
  owed += microseconds;
  if (owed > kShortest) ::usleep(static_cast<useconds_t>(std::exchange(owed, 0)));
}

cudaError_t submit(const char* who, cudaStream_t handle, Kind kind, std::function<void()> work) {
  enter(who);
  CUstream_st* const stream = find_stream(handle);
  if (stream == nullptr) return no_stream(who);
  if (kind == Kind::kKernel && stream->device != current_device()) {
    violation(std::string(who) + ": a stream of device " + std::to_string(stream->device) + " while device " +
              std::to_string(current_device()) + " is current (cudaErrorInvalidResourceHandle)");
    return failed(cudaErrorInvalidResourceHandle);
  }
  if (captures_are_under_way()) {
    Lock lock(mutex());
    if (stream->capture) return capture(*stream->capture, stream, std::move(work));
    if (cudaError_t error = refused_beside_captures(who, stream)) return error;
  }
  if (handle == nullptr && kind == Kind::kKernel) STANDIN_COUNT("kernels on the default stream");
  put(stream, std::move(work));
  return cudaSuccess;
}

}  // namespace standin

using namespace standin;

STANDIN_API cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  STANDIN_ENTER(cudaDeviceGetStreamPriorityRange);
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

STANDIN_API cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned flags, int priority) {
  STANDIN_ENTER(cudaStreamCreate);
  auto* stream = new CUstream_st{.device = current_device(), .flags = flags, .priority = priority};
  Lock lock(mutex());
  all_streams().insert(stream);
  *handle = stream;
  return cudaSuccess;
}

STANDIN_API cudaStreamCreate(cudaStream_t* handle) { return cudaStreamCreateWithPriority(handle, 0, 0); }
STANDIN_API cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) {
  return cudaStreamCreateWithPriority(handle, flags, 0);
}

/// Its thread keeps it alive.
STANDIN_API cudaStreamDestroy(cudaStream_t handle) {
  STANDIN_ENTER(cudaStreamDestroy);
  Lock lock(mutex());
  return all_streams().erase(handle) > 0 ? cudaSuccess : no_stream("cudaStreamDestroy");
}

STANDIN_API cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  const CUstream_st* stream = find_stream(handle);
  *priority = stream != nullptr ? stream->priority : 0;
  return cudaSuccess;
}

STANDIN_API cudaStreamSynchronize(cudaStream_t handle) {
  STANDIN_ENTER(cudaStreamSynchronize);
  CUstream_st* stream = find_stream(handle);
  if (cudaError_t error = refused_look("cudaStreamSynchronize", stream)) return error;
  wait_for(stream);
  return cudaSuccess;
}

STANDIN_API cudaStreamQuery(cudaStream_t handle) {
  STANDIN_ENTER(cudaStreamQuery);
  CUstream_st* stream = find_stream(handle);
  if (cudaError_t error = refused_look("cudaStreamQuery", stream)) return error;
  return is_idle(stream) ? cudaSuccess : failed(cudaErrorNotReady);
}

STANDIN_API cudaDeviceSynchronize() {
  STANDIN_ENTER(cudaDeviceSynchronize);
  if (cudaError_t error = refused_in_capture("cudaDeviceSynchronize")) return error;
  wait_for_device(current_device());
  return cudaSuccess;
}

STANDIN_API cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  STANDIN_COUNT("cudaLaunchHostFunc");
  return submit("cudaLaunchHostFunc", handle, Kind::kOther, [function, data] {
    InHostFunction here;
    function(data);
  });
}

STANDIN_API cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t function, void* data, unsigned) {
  STANDIN_COUNT("cudaStreamAddCallback");
  return submit("cudaStreamAddCallback", handle, Kind::kOther, [handle, function, data] {
    InHostFunction here;
    function(handle, cudaSuccess, data);
  });
}
