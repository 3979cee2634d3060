#pragma once

// Scaling of rotary positions in GGUF files: by metadata and, for Llama 3 and longrope, by tensors.

#include <nlohmann/json.hpp>
#include <vector>

#include "base/gguf/format.h"
#include "model/families/options.h"

namespace fsdp::gguf {

inline constexpr const char* kRopeFrequencies = "rope_freqs.weight";
inline constexpr const char* kShortFactors = "rope_factors_short.weight";
inline constexpr const char* kLongFactors = "rope_factors_long.weight";

/// A tensor of divisors of the rotary frequencies, in fp32.
struct DivisorTensor {
  std::string name;
  std::vector<float> divisors;
};
/// The tensors that files of the model have.
std::vector<DivisorTensor> divisor_tensors(const nn::ModelOptions& options);
bool is_divisor_tensor(std::string_view name);

/// Adds the keys of the scaling to the metadata of an architecture, whose name and a dot are the prefix.
void describe_scaling(const nn::ModelOptions& options, const std::string& prefix, Metadata& metadata);

/// Factor by which llama.cpp multiplies cosines and sines itself.
double own_attention_factor(nn::RopeType type, double factor);

/// Divisors of the rotary frequencies, in fp32.
std::vector<float> frequency_divisors(const nn::ModelOptions& options);

/// Sets the options of rotary scaling that have these divisors; false if there are none.
bool find_scaling(const std::vector<float>& divisors, double theta, nlohmann::json& scaling);

}  // namespace fsdp::gguf
