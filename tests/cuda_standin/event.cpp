#include <unistd.h>

#include <chrono>
#include <set>
#include <string>
#include <utility>

#include "capture.h"
#include "device.h"
#include "report.h"
#include "settings.h"
#include "stream.h"

namespace standin {
namespace {

std::set<CUevent_st*>& events() {
  static auto* events = new std::set<CUevent_st*>;
  return *events;
}

void pass(Moment& moment) {
  moment.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count() +
      1e-3 * static_cast<double>(added_milliseconds);
  moment.passed = true;
}

void wait_until_passed(const Moment& moment) {
  constexpr useconds_t kLookAgain = 50;
  while (!moment.passed.load()) ::usleep(kLookAgain);
}

cudaError_t no_event(const char* who) {
  violation(std::string(who) + " of what is no event");
  return failed(cudaErrorInvalidResourceHandle);
}

/// Whether the host may look at the event now.
cudaError_t refused_look(const char* who, cudaEvent_t event, std::shared_ptr<Moment>& moment) {
  Lock lock(mutex());
  if (!is_event(event)) return no_event(who);
  if (event->capture) {
    if (is_under_way(event->capture)) {
      return spoil(*event->capture, cudaErrorCapturedEvent, std::string(who) + " of a captured event");
    }
    violation(std::string(who) + " of an event that was recorded in a capture");
    return failed(cudaErrorCapturedEvent);
  }
  moment = event->moment;
  return refused_in_capture(who);
}

/// A stream that is or will be captured waits for an event.
cudaError_t wait_in_capture(CUstream_st* stream, cudaEvent_t event, unsigned flags) {
  if (!event->capture) {
    if (!event->moment || (flags & cudaEventWaitExternal) != 0) return cudaSuccess;
    return spoil(*stream->capture, cudaErrorStreamCaptureIsolation,
                 "a captured stream waits for an event that was recorded outside of the capture");
  }
  if (stream->capture && stream->capture != event->capture) {
    return spoil(*stream->capture, cudaErrorStreamCaptureMerge,
                 "cudaStreamWaitEvent would merge two captures");
  }
  if (!is_under_way(event->capture)) {
    violation("cudaStreamWaitEvent for an event of a capture that has ended");
    return failed(cudaErrorCapturedEvent);
  }
  if (!stream->capture && stream == device(stream->device).default_stream) {
    return spoil(*event->capture, cudaErrorStreamCaptureImplicit, "the default stream would join a capture");
  }
  stream->capture = event->capture;
  join(*stream->capture, stream, event->captured);
  return cudaSuccess;
}

}  // namespace

bool is_event(cudaEvent_t event) { return events().contains(event); }

}  // namespace standin

using namespace standin;

STANDIN_API cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  STANDIN_ENTER(cudaEventCreate);
  auto* made = new CUevent_st{.device = current_device(), .flags = flags};
  Lock lock(mutex());
  events().insert(made);
  *event = made;
  return cudaSuccess;
}

STANDIN_API cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }

STANDIN_API cudaEventDestroy(cudaEvent_t event) {
  STANDIN_COUNT("cudaEventDestroy");
  Lock lock(mutex());
  if (events().erase(event) == 0) return no_event("cudaEventDestroy");
  delete event;
  return cudaSuccess;
}

STANDIN_API cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t handle, unsigned flags) {
  STANDIN_ENTER(cudaEventRecord);
  CUstream_st* const stream = find_stream(handle);
  Lock lock(mutex());
  if (stream == nullptr || !is_event(event)) {
    violation("cudaEventRecord: no such stream or event");
    return failed(cudaErrorInvalidResourceHandle);
  }
  if (stream->device != event->device) {
    violation("cudaEventRecord: the event is of device " + std::to_string(event->device) +
              ", the stream of device " + std::to_string(stream->device));
    return failed(cudaErrorInvalidResourceHandle);
  }
  if (stream->capture) {
    if ((flags & cudaEventRecordExternal) != 0) return cudaSuccess;
    event->capture = stream->capture;
    event->captured = before(*stream->capture, stream);
    event->moment = nullptr;
    return cudaSuccess;
  }
  event->known = known_to(stream);
  event->capture = nullptr;
  event->moment = std::make_shared<Moment>();
  put(stream, [moment = event->moment] { pass(*moment); });
  return cudaSuccess;
}

STANDIN_API cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  return cudaEventRecordWithFlags(event, handle, 0);
}

STANDIN_API cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned flags) {
  STANDIN_ENTER(cudaStreamWaitEvent);
  CUstream_st* const stream = find_stream(handle);
  Lock lock(mutex());
  if (stream == nullptr || !is_event(event)) {
    violation("cudaStreamWaitEvent: no such stream or event");
    return failed(cudaErrorInvalidResourceHandle);
  }
  if (stream->capture || event->capture) return wait_in_capture(stream, event, flags);
  if (!event->moment) {
    STANDIN_COUNT("waits for events that were never recorded");
    return cudaSuccess;
  }
  stream_waits(stream, event->known);
  if (settings().late) put(stream, [moment = event->moment] { wait_until_passed(*moment); });
  return cudaSuccess;
}

STANDIN_API cudaEventQuery(cudaEvent_t event) {
  STANDIN_ENTER(cudaEventQuery);
  std::shared_ptr<Moment> moment;
  if (cudaError_t error = refused_look("cudaEventQuery", event, moment)) return error;
  if (moment && !moment->passed) return failed(cudaErrorNotReady);
  host_knows(event->known);
  return cudaSuccess;
}

STANDIN_API cudaEventSynchronize(cudaEvent_t event) {
  STANDIN_ENTER(cudaEventSynchronize);
  std::shared_ptr<Moment> moment;
  if (cudaError_t error = refused_look("cudaEventSynchronize", event, moment)) return error;
  if (!moment) return cudaSuccess;
  if (!moment->passed) STANDIN_COUNT("cudaEventSynchronize that waits");
  wait_until_passed(*moment);
  host_knows(event->known);
  return cudaSuccess;
}

STANDIN_API cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  Lock lock(mutex());
  if (((begin->flags | end->flags) & cudaEventDisableTiming) != 0) {
    violation("cudaEventElapsedTime of events without timing");
    return failed(cudaErrorInvalidResourceHandle);
  }
  if (!begin->moment || !end->moment) return failed(cudaErrorInvalidResourceHandle);
  if (!begin->moment->passed || !end->moment->passed) return failed(cudaErrorNotReady);
  *milliseconds = static_cast<float>((end->moment->seconds - begin->moment->seconds) * 1e3);
  return cudaSuccess;
}
