#pragma once

#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace fsdp::objects {

/// Lets threads that ask the same at the same time share a request. An answer serves only those who asked
/// before its request began, so that it tells of a later moment than each of their questions. Thread-safe.
template <typename Answer>
class SharedAnswers {
 public:
  /// Returns what `request` returns, or throws what it throws, here or in the thread that made the request.
  Answer ask(const std::string& question, const std::function<Answer()>& request) {
    std::promise<Answer> promise;
    std::shared_future<Answer> answer, running;
    {
      const std::lock_guard lock(mutex_);
      Line& line = lines_[question];
      if (line.next.valid()) {
        answer = line.next;
      } else {
        line.next = promise.get_future().share();
        running = line.running;
      }
    }
    if (answer.valid()) return answer.get();
    // Until the request under way is answered, others may join the next one.
    if (running.valid()) running.wait();
    {
      const std::lock_guard lock(mutex_);
      Line& line = lines_[question];
      answer = line.running = std::exchange(line.next, {});
    }
    try {
      promise.set_value(request());
    } catch (...) {
      promise.set_exception(std::current_exception());
    }
    return answer.get();
  }

 private:
  struct Line {
    std::shared_future<Answer> running, next;
  };

  std::mutex mutex_;
  std::map<std::string, Line> lines_;
};

}  // namespace fsdp::objects
