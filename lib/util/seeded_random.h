#pragma once

// Random numbers that depend on a seed and a name only, never on the order of calls or the number of
// processes.

#include <ATen/core/Generator.h>

#include <cstdint>
#include <string_view>

namespace fsdp::util {

/// A CPU generator whose state is a function of (seed, name).
at::Generator named_generator(uint64_t seed, std::string_view name);

}  // namespace fsdp::util
