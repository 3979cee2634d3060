#pragma once

// Sampling options recommended by a model's authors: Hugging Face's generation_config.json.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "state/description/described_model.h"
#include "tools/generate/sampler.h"

namespace fsdp::generate {

/// Sampling options that the user or the model's authors choose; those that are not given are left to others.
struct SamplingChoice {
  std::optional<double> temperature = std::nullopt;
  std::optional<int64_t> top_k = std::nullopt;
  std::optional<double> top_p = std::nullopt;
};

/// The values of generation_config.json, with temperature 0 for do_sample = false. Not given if there is no
/// such file.
struct GenerationDefaults : SamplingChoice {
  std::filesystem::path file;
  std::vector<int64_t> stop_ids;  ///< eos_token_id, a number or a list
};

/// Reads the file in the model's folder, or the copy that its run keeps
/// (state/description/described_model.h). Throws Error(kCheckpoint) for a file that is not a JSON object of
/// this kind, and for values out of range.
GenerationDefaults generation_defaults(const checkpoint::DescribedModel& model);

/// Fills in the model's values for those that the user has not given, and then the values of `sampling`.
SamplingOptions chosen_sampling(const SamplingChoice& given, const GenerationDefaults& defaults,
                                const SamplingOptions& sampling = {});

/// Text for the model's values that chosen_sampling() uses: "temperature 0.6, top-p 0.9". Empty if there are
/// none.
std::string defaults_text(const SamplingChoice& given, const GenerationDefaults& defaults);

}  // namespace fsdp::generate
