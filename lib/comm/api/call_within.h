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

/// Runs `task`, which must not throw, on a thread that serves the calling one; whether it has ended within `limit`. The
/// thread stays for the next task, for a second at least; a late one is abandoned. A call of a task is part of it: it has
/// the limit of the outer call. A process made by fork() starts a thread of its own.
bool run_within(std::chrono::milliseconds limit, std::function<void()> task);

/// Runs `body` in a separate thread and returns its result, or throws its exception; nullopt if it does not
/// end within `limit`. A late thread is abandoned, so `body` must own or share everything it uses; one in time has let go
/// of it, so that a store which the body shares can be ended by its owner.
template <typename Body>
auto call_within(std::chrono::milliseconds limit, Body body) -> std::optional<std::invoke_result_t<Body>> {
  struct Call {
    std::optional<Body> body;
    std::optional<std::invoke_result_t<Body>> value{};
    std::exception_ptr error{};
  };
  const auto call = std::make_shared<Call>(std::move(body));
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
