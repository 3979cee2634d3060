#pragma once

// Random numbers that depend only on a seed and a name, not on the order of calls or the number of processes.

#include <ATen/core/Generator.h>

#include <cstdint>
#include <string_view>

namespace fsdp::util {

at::Generator named_generator(uint64_t seed, std::string_view name);

/// Advances a CPU generator by `count` draws of 32 bits, faster than drawing them: by the recurrence of the
/// Mersenne twister (Matsumoto and Nishimura, "Mersenne Twister: a 623-dimensionally equidistributed uniform
/// pseudo-random number generator", 1998, section 2.1) without tempering.
void skip_draws(at::Generator& generator, int64_t count);

}  // namespace fsdp::util
