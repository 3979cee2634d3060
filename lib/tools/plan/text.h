#pragma once

#include <string>

#include "tools/plan/plan.h"

namespace fsdp::plan {

/// The plan as tables for people, 100 columns wide at most.
std::string plan_text(const Plan& plan);

/// The first lines of the plan: model, ranks, batch, machines.
std::string plan_heading(const Plan& plan);
/// plan_heading() without the machines.
std::string plan_subject(const Plan& plan);

/// The plan as one JSON object, for programs, in bytes and seconds.
std::string plan_json(const Plan& plan);

/// "1.25 s", "3.1 ms", "12 us".
std::string duration(double seconds);
/// Percentage of `whole`; 0 if `whole` is 0.
inline double share(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }
std::string table_row(const std::string& name, const std::string& value, const std::string& remark);

/// Bytes in powers of ten, as is usual for communication: 800016000 -> "0.80 GB".
std::string decimal_bytes(int64_t bytes);

}  // namespace fsdp::plan
