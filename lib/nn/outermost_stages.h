#pragma once

#include <string>
#include <utility>
#include <vector>

#include "nn/stage.h"

namespace fsdp::nn {

/// The stages inside `root` whose type_name() is in `stage_types`, with their names, in the order of the
/// modules: not those inside one of them, and each once.
std::vector<std::pair<std::string, Stage*>> outermost_stages(Stage& root,
                                                             const std::vector<std::string>& stage_types);

}  // namespace fsdp::nn
