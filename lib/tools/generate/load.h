#pragma once

// Loads a stored model and its tokenizer for generation.

#include <ATen/core/ScalarType.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizers/tokenizer.h"
#include "model/nn/stage.h"
#include "state/weights/stored_model.h"

namespace fsdp::generate {

/// Opens a model like checkpoint::open_model(), including the options of a plug-in's model. Throws
/// Error(kCheckpoint) if the plug-in is not loaded.
checkpoint::StoredModel open_model(const std::filesystem::path& path, bool ema = false);

/// The type in which a model computes. `name` is a type or "auto", which is bfloat16 for weights stored in
/// bfloat16 and float32 for all others. Throws Error(kUsage) for other names.
at::ScalarType compute_type(const checkpoint::StoredModel& stored, const std::string& name);

/// Loads the model on the CPU. Weights are read once, directly into their place and type, so that peak memory
/// is the model's size. Throws Error(kCheckpoint) for weights that cannot be read.
std::shared_ptr<nn::Stage> load_model(const checkpoint::StoredModel& stored, at::ScalarType dtype);

/// The name of the model's tokenizer for data::make_tokenizer(): the vocabulary in the model's folder, the
/// copy that the checkpoint's run keeps (state/description/described_model.h), or data.tokenizer of the
/// run's config.toml. Nothing if there is none of these.
std::optional<std::string> tokenizer_name(const checkpoint::StoredModel& stored);

/// Makes the tokenizer of tokenizer_name(). Throws Error(kUsage) if there is none.
std::unique_ptr<data::Tokenizer> find_tokenizer(const checkpoint::StoredModel& stored);

/// The tokens that end a text: the tokenizer's tokens and the eos_token_id of the model's config.
std::vector<int64_t> stop_ids(const nlohmann::json& config, const data::Tokenizer& tokenizer);

/// The ids of a text. The tokens with which the tokenizer begins texts are put first, like fsdp-data does for
/// documents, unless `begins` is false or the text begins with them itself. An empty text becomes what
/// precedes a new text: these tokens, the token that ends a text, or, for tokenizers without such a token, a
/// line end.
std::vector<int64_t> encode_prompt(const data::Tokenizer& tokenizer, const std::string& text,
                                   bool begins = true);

}  // namespace fsdp::generate
