#pragma once

// Llama 3's scaling of rotary positions, which GGUF has as a tensor of divisors.

#include <nlohmann/json.hpp>
#include <vector>

#include "model/families/options.h"

namespace fsdp::gguf {

inline constexpr const char* kRopeFrequencies = "rope_freqs.weight";

/// Divisors of the rotary frequencies, in fp32.
std::vector<float> frequency_divisors(const nn::ModelOptions& options);

/// Sets the options of rotary scaling that have these divisors; false if there are none.
bool find_scaling(const std::vector<float>& divisors, double theta, nlohmann::json& scaling);

}  // namespace fsdp::gguf
