#pragma once

#include <string>

namespace fsdp::util {

/// The name of this machine, or "this machine" when it has none.
std::string host_name();

}  // namespace fsdp::util
