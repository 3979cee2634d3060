#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>

#include <chrono>
#include <future>
#include <system_error>
#include <utility>
#include <vector>

#include "base/util/clock.h"
#include "base/util/limits.h"
#include "base/util/log.h"
#include "base/util/text.h"
#include "comm/api/communicator.h"

namespace fsdp::comm {
namespace {

/// Far below any time-out, and long enough that the meetings cost nothing. A rank whose body has ended does
/// not wait that long, but in the all-reduce for the other ranks.
constexpr std::chrono::milliseconds kBetweenMeetings{500};
constexpr double kSecondsUntilTold = 60;

/// Empty if `body` succeeds; otherwise one character for the kind of the error, then its message.
std::string outcome_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    const util::Error brief = util::without_backtrace(error);
    return static_cast<char>('0' + brief.exit_code()) + std::string(brief.what());
  }
  return "";
}

void share(Communicator& communicator, const std::string& purpose, const std::string& outcome) {
  const std::string first = first_text(communicator, outcome, {.unit = purpose});
  if (first.empty()) return;
  at::Tensor failures = at::zeros({communicator.world_size()}, at::kByte);
  failures[communicator.rank()] = outcome.empty() ? 0 : 1;
  communicator.all_reduce(failures, ReduceOp::kMax, {.unit = purpose})->wait();
  std::vector<std::string> failed;
  for (int rank = 0; rank < communicator.world_size(); ++rank) {
    if (failures.const_data_ptr<uint8_t>()[rank] != 0) failed.push_back(std::to_string(rank));
  }
  const bool all = failed.size() == static_cast<size_t>(communicator.world_size());
  throw AgreedError(static_cast<ErrorKind>(first.front() - '0'),
                    first.substr(1) + (all ? "" : " (on rank " + util::join(failed, ", ") + ")"));
}

/// Meets the other ranks repeatedly, in a separate thread, until the bodies of all have ended.
class Meetings {
 public:
  Meetings(Communicator& communicator, const std::string& purpose)
      : communicator_(communicator), purpose_(purpose), body_has_ended_(body_ends_.get_future()) {
    try {
      meetings_ = std::async(std::launch::async, [this] { meet(); });
    } catch (const std::system_error&) {  // no thread is left: the others wait for this rank's body
      meetings_ = std::async(std::launch::deferred, [this] { meet(); });
    }
  }

  ~Meetings() {
    if (meetings_.valid()) body_ends_.set_value();
  }
  Meetings(const Meetings&) = delete;
  Meetings& operator=(const Meetings&) = delete;

  /// Returns when the bodies of all ranks have ended. Called when this rank's body has ended.
  void join() {
    body_ends_.set_value();
    std::exchange(meetings_, {}).get();
  }

 private:
  void meet() {
    // A new thread is at device 0, on which another rank may be.
    const c10::DeviceGuard current(communicator_.device());
    const auto began = std::chrono::steady_clock::now();
    double told_after = kSecondsUntilTold;
    for (;;) {
      const bool has_ended = body_has_ended_.wait_for(kBetweenMeetings) == std::future_status::ready;
      at::Tensor busy = at::full({1}, has_ended ? 0 : communicator_.rank() + 1, at::kLong);
      communicator_.all_reduce(busy, ReduceOp::kMax, {.unit = purpose_})->wait();
      const auto number = busy.const_data_ptr<int64_t>()[0];
      if (number == 0) return;
      if (communicator_.rank() != 0 || util::seconds_since(began) < told_after) continue;
      util::log_info(concat("waiting for rank ", number - 1, ": ", purpose_, " has taken it ",
                            util::fixed(util::seconds_since(began), 0), " seconds"));
      told_after *= 2;
    }
  }

  Communicator& communicator_;
  const std::string& purpose_;
  std::promise<void> body_ends_;
  std::future<void> body_has_ended_;
  std::future<void> meetings_;
};

}  // namespace

void agree_at_once(Communicator& communicator, const std::string& purpose,
                   const std::function<void()>& body) {
  share(communicator, purpose, outcome_of(body));
}

void agree(Communicator& communicator, const std::string& purpose, const std::function<void()>& body) {
  if (communicator.world_size() == 1) return agree_at_once(communicator, purpose, body);
  Meetings meetings(communicator, purpose);
  const std::string outcome = outcome_of(body);
  meetings.join();
  share(communicator, purpose, outcome);
}

}  // namespace fsdp::comm
