#pragma once

#include <string>

#include "tools/plan/plan.h"

namespace fsdp::plan {

/// The plan as tables for people, 100 columns wide at most.
std::string plan_text(const Plan& plan);

/// Its first lines: model, ranks, batch, machines.
std::string plan_heading(const Plan& plan);
/// These without the machines.
std::string plan_subject(const Plan& plan);

/// The plan as one JSON object, for programs, in bytes and seconds.
std::string plan_json(const Plan& plan);

/// Bytes in powers of ten, as is usual for communication: 800016000 -> "0.80 GB".
std::string decimal_bytes(int64_t bytes);

}  // namespace fsdp::plan
