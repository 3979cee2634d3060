#pragma once

#include <string>

namespace fsdp::util {

/// The version of the toolkit, as in "0.2.0".
std::string version();

}  // namespace fsdp::util
