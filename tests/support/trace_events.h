#pragma once

// Events of step 2 for tests of what is drawn of a step.

#include <cstdint>
#include <optional>
#include <string>

#include "comm/events/trace_event.h"

namespace fsdp::testing {

inline comm::TraceEvent compute_event(const std::string& unit, const std::string& pass, double begin_us,
                                      std::optional<double> end_us) {
  return {.step = 2,
          .op = "compute",
          .unit = unit,
          .pass_or_event = pass,
          .issue_us = begin_us,
          .start_us = begin_us,
          .done_us = end_us};
}

inline comm::TraceEvent gather_event(const std::string& unit, double begin_us, double end_us,
                                     std::optional<double> wait_us = std::nullopt) {
  return {.step = 2,
          .op = "all_gather",
          .unit = unit,
          .pass_or_event = "forward",
          .bytes = 64,
          .issue_us = begin_us - 1,
          .start_us = begin_us,
          .wait_us = wait_us,
          .done_us = end_us};
}

inline comm::TraceEvent buffer_event(bool allocated, int64_t bytes, double at_us) {
  return {.step = 2,
          .op = "buffer",
          .unit = "a",
          .pass_or_event = allocated ? "allocate" : "free",
          .bytes = bytes,
          .issue_us = at_us,
          .buffer_kind = "parameters"};
}

}  // namespace fsdp::testing
