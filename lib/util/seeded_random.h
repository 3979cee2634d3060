#pragma once

// Random numbers that depend on a seed and a name only, never on the order of calls or the number of
// processes.

#include <ATen/core/Generator.h>

#include <cstdint>
#include <string_view>

namespace fsdp::util {

/// A CPU generator whose state is a function of (seed, name).
at::Generator named_generator(uint64_t seed, std::string_view name);

/// Moves a CPU generator on as `count` draws of 32 bits would, in about a fifth of their time: the recurrence
/// of the Mersenne twister (Matsumoto and Nishimura, "Mersenne Twister: a 623-dimensionally equidistributed
/// uniform pseudo-random number generator", 1998, section 2.1) without what is made of its words.
void skip_draws(at::Generator& generator, int64_t count);

}  // namespace fsdp::util
