#pragma once

#include <string>

#include "plan/plan.h"

namespace fsdp::plan {

/// The plan as tables for people, 100 columns wide at most.
std::string plan_text(const Plan& plan);

/// Its first lines: model, ranks, batch, machines.
std::string plan_heading(const Plan& plan);

/// The same as one JSON object, for programs. Bytes and seconds, without units.
std::string plan_json(const Plan& plan);

/// Bytes in powers of ten, as communication is spoken of: 800016000 -> "0.80 GB".
std::string decimal_bytes(int64_t bytes);

}  // namespace fsdp::plan
