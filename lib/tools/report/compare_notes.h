#pragma once

// The notes of a comparison: reasons to doubt it.

#include "tools/report/compare.h"

namespace fsdp::report {

/// Adds the notes that follow from the other members. `has_environments`: whether both runs have an
/// environment.json.
void add_notes(Comparison& comparison, bool has_environments);

}  // namespace fsdp::report
