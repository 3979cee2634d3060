#include "capture.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>
#include <utility>

#include "device.h"
#include "report.h"
#include "stream.h"

namespace standin {

struct Capture {
  unsigned long long id;
  cudaStreamCaptureMode mode;
  std::thread::id owner;
  cudaStream_t origin;
  bool is_spoiled = false;
  std::vector<std::function<void(cudaStream_t)>> operations{};
  /// Of each stream, how many operations of each stream come before its next one.
  std::map<cudaStream_t, std::map<cudaStream_t, long>> clocks{};
};

namespace {

std::atomic<int> count_under_way{0};
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;
thread_local std::shared_ptr<Capture> begun_here;

std::set<std::shared_ptr<Capture>>& under_way() {
  static auto* captures = new std::set<std::shared_ptr<Capture>>;
  return *captures;
}

cudaStreamCaptureStatus status_of(const CUstream_st* stream) {
  if (stream == nullptr || !stream->capture) return cudaStreamCaptureStatusNone;
  return stream->capture->is_spoiled ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
}

bool all_joined(const Capture& capture) {
  const std::map<cudaStream_t, long> last = before(capture, capture.origin);
  return std::all_of(capture.clocks.begin(), capture.clocks.end(), [&](const auto& entry) {
    const auto& [stream, clock] = entry;
    const auto own = clock.find(stream), known = last.find(stream);
    return own == clock.end() || (known != last.end() && known->second >= own->second);
  });
}

void end(const std::shared_ptr<Capture>& capture) {
  for (CUstream_st* stream : streams()) {
    if (stream->capture == capture) stream->capture = nullptr;
  }
  under_way().erase(capture);
  --count_under_way;
  begun_here = nullptr;
}

cudaError_t misused(const std::string& why, cudaError_t error) {
  violation(why);
  return failed(error);
}

}  // namespace

bool captures_are_under_way() { return count_under_way > 0; }
bool is_under_way(const std::shared_ptr<Capture>& capture) { return under_way().contains(capture); }

cudaError_t spoil(Capture& capture, cudaError_t error, const std::string& why) {
  capture.is_spoiled = true;
  violation(why);
  return failed(error);
}

cudaError_t refused_in_capture(const char* who) {
  if (!captures_are_under_way()) return cudaSuccess;
  Lock lock(mutex());
  std::shared_ptr<Capture> hit;
  if (thread_mode != cudaStreamCaptureModeRelaxed && begun_here &&
      begun_here->mode != cudaStreamCaptureModeRelaxed) {
    hit = begun_here;
  }
  if (thread_mode == cudaStreamCaptureModeGlobal) {
    for (const auto& capture : under_way()) {
      if (capture->mode == cudaStreamCaptureModeGlobal) hit = capture;
    }
  }
  if (!hit) return cudaSuccess;
  return spoil(*hit, cudaErrorStreamCaptureUnsupported, std::string(who) + " during a stream capture");
}

cudaError_t refused_beside_captures(const char* who, CUstream_st* stream) {
  if (stream != device(stream->device).default_stream) return cudaSuccess;
  for (const auto& capture : under_way()) {
    if ((capture->origin->flags & cudaStreamNonBlocking) != 0) continue;
    return spoil(*capture, cudaErrorStreamCaptureImplicit,
                 std::string(who) + " on the default stream during a capture");
  }
  return cudaSuccess;
}

cudaError_t capture(Capture& capture, CUstream_st* stream, std::function<void()> work) {
  if (capture.is_spoiled) return failed(cudaErrorStreamCaptureInvalidated);
  STANDIN_COUNT("captured operations");
  ++capture.clocks[stream][stream];
  capture.operations.emplace_back(
      [work = std::move(work)](cudaStream_t launched_on) { put(find_stream(launched_on), work); });
  return cudaSuccess;
}

std::map<cudaStream_t, long> before(const Capture& capture, CUstream_st* stream) {
  const auto clock = capture.clocks.find(stream);
  return clock != capture.clocks.end() ? clock->second : std::map<cudaStream_t, long>{};
}

void join(Capture& capture, CUstream_st* stream, const std::map<cudaStream_t, long>& operations) {
  std::map<cudaStream_t, long>& clock = capture.clocks[stream];
  for (const auto& [other, number] : operations) clock[other] = std::max(clock[other], number);
  ++clock[stream];
}

}  // namespace standin

using namespace standin;

STANDIN_API cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, thread_mode);
  return cudaSuccess;
}

STANDIN_API cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  STANDIN_ENTER(cudaStreamBeginCapture);
  CUstream_st* const stream = find_stream(handle);
  Lock lock(mutex());
  if (stream == nullptr || stream == device(current_device()).default_stream) {
    return misused("capture of the default stream", cudaErrorStreamCaptureUnsupported);
  }
  if (stream->capture) return misused("capture of a stream that is captured", cudaErrorIllegalState);
  static unsigned long long next_id = 1;
  begun_here = std::make_shared<Capture>(
      Capture{.id = next_id++, .mode = mode, .owner = std::this_thread::get_id(), .origin = stream});
  stream->capture = begun_here;
  under_way().insert(begun_here);
  ++count_under_way;
  return cudaSuccess;
}

STANDIN_API cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  STANDIN_ENTER(cudaStreamEndCapture);
  CUstream_st* const stream = find_stream(handle);
  Lock lock(mutex());
  *graph = nullptr;
  if (stream == nullptr || !stream->capture) {
    return misused("cudaStreamEndCapture without a capture", cudaErrorIllegalState);
  }
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture->origin != stream) {
    return spoil(*capture, cudaErrorStreamCaptureUnmatched, "cudaStreamEndCapture on another stream");
  }
  if (capture->mode != cudaStreamCaptureModeRelaxed && capture->owner != std::this_thread::get_id()) {
    return spoil(*capture, cudaErrorStreamCaptureWrongThread, "cudaStreamEndCapture by another thread");
  }
  end(capture);
  if (capture->is_spoiled) return failed(cudaErrorStreamCaptureInvalidated);
  if (!all_joined(*capture)) {
    return misused("a capture ends while some of its streams have not joined the first again",
                   cudaErrorStreamCaptureUnjoined);
  }
  STANDIN_COUNT("graphs recorded");
  *graph = new CUgraph_st{std::move(capture->operations)};
  return cudaSuccess;
}

STANDIN_API cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  STANDIN_COUNT("cudaStreamIsCapturing");
  *status = cudaStreamCaptureStatusNone;
  if (!captures_are_under_way()) return cudaSuccess;
  CUstream_st* const stream = find_stream(handle);
  Lock lock(mutex());
  if (stream != nullptr && !stream->capture) {
    if (cudaError_t error = refused_beside_captures("cudaStreamIsCapturing", stream)) return error;
  }
  *status = status_of(stream);
  return cudaSuccess;
}

STANDIN_API cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** dependencies, const cudaGraphEdgeData** edges,
                                     size_t* count) {
  CUstream_st* const stream = find_stream(handle);
  Lock lock(mutex());
  *status = status_of(stream);
  if (id != nullptr) *id = stream != nullptr && stream->capture ? stream->capture->id : 0;
  if (graph != nullptr) *graph = nullptr;
  if (dependencies != nullptr) *dependencies = nullptr;
  if (edges != nullptr) *edges = nullptr;
  if (count != nullptr) *count = 0;
  return cudaSuccess;
}

STANDIN_API cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph,
                                          unsigned long long) {
  STANDIN_ENTER(cudaGraphInstantiate);
  *executable = new CUgraphExec_st{graph->operations, current_device()};
  return cudaSuccess;
}

STANDIN_API cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(executable, graph, flags);
}

STANDIN_API cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t handle) {
  STANDIN_ENTER(cudaGraphLaunch);
  const CUstream_st* stream = find_stream(handle);
  if (stream == nullptr || stream->capture) {
    return misused("cudaGraphLaunch into a capture", cudaErrorStreamCaptureUnsupported);
  }
  if (stream->device != current_device())
    violation("cudaGraphLaunch on the stream of another device than the current one");
  for (const auto& operation : executable->operations) operation(handle);
  return cudaSuccess;
}

STANDIN_API cudaGraphExecDestroy(cudaGraphExec_t executable) {
  STANDIN_COUNT("cudaGraphExecDestroy");
  delete executable;
  return cudaSuccess;
}

STANDIN_API cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

STANDIN_API cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) {
  *count = graph->operations.size();
  return cudaSuccess;
}

STANDIN_API cudaGraphDebugDotPrint(cudaGraph_t, const char*, unsigned) { return cudaSuccess; }

STANDIN_API cudaGraphNodeGetDependencies(cudaGraphNode_t, cudaGraphNode_t*, cudaGraphEdgeData*,
                                         size_t* count) {
  *count = 0;
  return cudaSuccess;
}
