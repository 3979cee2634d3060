#pragma once

#include <string>

namespace fsdp::testing {

/// The checkout that the tests were built from. A function, so that only its own source is compiled again in
/// another checkout (ccache).
std::string source_folder();

}  // namespace fsdp::testing
