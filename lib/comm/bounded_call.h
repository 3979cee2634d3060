#pragma once

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

#include "util/limits.h"

namespace fsdp::comm {

/// What `body` returns or throws if it ends within `limit`; else nothing. For calls into a library that may
/// wait for another process without a bound, and that nobody can interrupt: `body` runs in a thread of its
/// own, which is left to itself when the time is up, so body must own, or share, all that it uses.
template <typename Body>
auto call_within(std::chrono::milliseconds limit, Body body) -> std::optional<std::invoke_result_t<Body>> {
  auto task = std::make_shared<std::packaged_task<std::invoke_result_t<Body>()>>(std::move(body));
  auto result = task->get_future();
  util::start_thread([task] { (*task)(); }).detach();
  if (result.wait_for(limit) != std::future_status::ready) return std::nullopt;
  return result.get();
}

}  // namespace fsdp::comm
