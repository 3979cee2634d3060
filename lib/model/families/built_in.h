#pragma once

#include <vector>

#include "model/families/family.h"

namespace fsdp::nn {

/// The families of built_in/NAME.cpp, each from a function built_in::NAME(). CMakeLists.txt writes the
/// function's source.
std::vector<Family> make_built_in_families();

}  // namespace fsdp::nn
