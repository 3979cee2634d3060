#pragma once

// Calls into a library that may block on another process without a time-out.

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace fsdp::comm {

/// Runs `task`, which must not throw, in a thread that serves the calling thread. Returns whether it has
/// ended within `limit`. The serving thread stays for later tasks, at least for a second; a late one is
/// abandoned. A call from inside a task is part of that task and has its limit. A process made by fork()
/// starts a thread of its own.
bool run_within(std::chrono::milliseconds limit, std::function<void()> task);

/// Runs `body` in a separate thread and returns its result, or throws its exception; nullopt if it does not
/// end within `limit`. A late thread is abandoned, so `body` must own or share everything it uses. A thread
/// in time has released `body`, so that the owner of a store that `body` shares can end the store.
template <typename Body>
auto call_within(std::chrono::milliseconds limit, Body body) -> std::optional<std::invoke_result_t<Body>> {
  struct PendingCall {
    std::optional<Body> body;
    std::optional<std::invoke_result_t<Body>> value{};
    std::exception_ptr error{};
  };
  const auto call = std::make_shared<PendingCall>(std::move(body));
  const bool in_time = run_within(limit, [call] {
    try {
      call->value = (*call->body)();
    } catch (...) {
      call->error = std::current_exception();
    }
    call->body.reset();
  });
  if (!in_time) return std::nullopt;
  if (call->error) std::rethrow_exception(call->error);
  return std::move(call->value);
}

}  // namespace fsdp::comm
