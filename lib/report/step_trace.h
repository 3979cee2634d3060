#pragma once

#include "report/run_record.h"

namespace fsdp::report {

/// A whole step of a communication trace (lib/comm/trace.h): the last but one, since the last may be torn, or
/// the only one. Counts the lines that are none of a trace. Holds two steps in memory at a time.
std::optional<StepTrace> read_step_trace(const std::filesystem::path& path, int64_t& skipped_lines);

}  // namespace fsdp::report
