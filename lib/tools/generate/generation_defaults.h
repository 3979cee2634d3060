#pragma once

// How a model's authors sample from it: Hugging Face's generation_config.json.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "state/hugging_face/described_model.h"
#include "tools/generate/sampler.h"

namespace fsdp::generate {

/// What generation_config.json sets; nothing of it where there is no such file.
struct GenerationDefaults {
  std::filesystem::path file;
  std::vector<int64_t> stop_ids;      ///< eos_token_id, a number or a list
  std::optional<double> temperature;  ///< 0 with do_sample = false
  std::optional<int64_t> top_k;
  std::optional<double> top_p;
};

/// The file in the model's folder, or the copy that its run keeps (state/hugging_face/described_model.h). Throws
/// Error(kCheckpoint) for a file that is no such JSON object, and for values out of range.
GenerationDefaults generation_defaults(const checkpoint::DescribedModel& model);

/// The options that were given, else the model's, else those of `sampling`.
struct SamplingChoice {
  std::optional<double> temperature = std::nullopt;
  std::optional<int64_t> top_k = std::nullopt;
  std::optional<double> top_p = std::nullopt;
};
SamplingOptions chosen_sampling(const SamplingChoice& given, const GenerationDefaults& defaults,
                                const SamplingOptions& sampling = {});

/// "temperature 0.6, top-p 0.9": the model's values that chosen_sampling() takes; empty: none.
std::string defaults_text(const SamplingChoice& given, const GenerationDefaults& defaults);

}  // namespace fsdp::generate
