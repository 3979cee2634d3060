#include "state/checkpoint/background_task.h"

#include <ATen/ops/full.h>

#include <utility>

namespace fsdp::checkpoint {
namespace {

/// Time between all-reduces: far below any time-out, and long enough that they cost nothing. A rank whose
/// body has ended does not wait, but enters the all-reduce, where it waits for the others.
constexpr std::chrono::milliseconds kBetweenMeetings{500};

}  // namespace

BackgroundTask::BackgroundTask(comm::Communicator& communicator, std::string purpose,
                               std::function<void()> body)
    : communicator_(communicator),
      purpose_(std::move(purpose)),
      body_(std::async(std::launch::async, std::move(body))) {}

BackgroundTask::~BackgroundTask() {
  if (body_.valid()) body_.wait();
}

bool BackgroundTask::done_everywhere(std::chrono::milliseconds patience) {
  bool done = body_.wait_for(patience) == std::future_status::ready;
  if (communicator_.world_size() == 1) return done;
  at::Tensor busy = at::full({1}, done ? 0 : 1, at::kLong);
  communicator_.all_reduce(busy, comm::ReduceOp::kMax, {.unit = purpose_})->wait();
  return busy.data_ptr<int64_t>()[0] == 0;
}

void BackgroundTask::join() {
  while (!done_everywhere(kBetweenMeetings)) {
  }
  comm::agree_at_once(communicator_, purpose_, [&] { body_.get(); });
}

}  // namespace fsdp::checkpoint
