#pragma once

// Loads what generation needs from where a model is stored.

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

/// checkpoint::open_model(), including the options of a plug-in's model. Throws Error(kCheckpoint) when the
/// plug-in is not loaded.
checkpoint::StoredModel open_model(const std::filesystem::path& path, bool ema = false);

/// The type in which a model computes: by name, or "auto", which is bfloat16 for weights that are stored in
/// it and float32 for all others. Throws Error(kUsage) for other names.
at::ScalarType compute_type(const checkpoint::StoredModel& stored, const std::string& name);

/// The model on the CPU. Weights are read once, directly in place and type, so that peak memory is that of
/// the model. Throws Error(kCheckpoint) for weights that cannot be read.
std::shared_ptr<nn::Stage> load_model(const checkpoint::StoredModel& stored, at::ScalarType dtype);

/// The name of the model's tokenizer, as data::make_tokenizer() takes it: the vocabulary in its folder, or that
/// of the run that it is a checkpoint of: the copy that the run keeps (state/hugging_face/described_model.h), or
/// data.tokenizer of config.toml. Nothing when there is neither.
std::optional<std::string> tokenizer_name(const checkpoint::StoredModel& stored);

/// That tokenizer. Throws Error(kUsage) when there is none.
std::unique_ptr<data::Tokenizer> find_tokenizer(const checkpoint::StoredModel& stored);

/// The tokens that end a text: the tokenizer's, and the eos_token_id of the model's config.
std::vector<int64_t> stop_ids(const nlohmann::json& config, const data::Tokenizer& tokenizer);

/// A text's ids, with the tokens before them that the tokenizer's author puts before texts, as fsdp-data does with
/// documents; not with `begins` = false, nor where the text begins with them itself. An empty text becomes what
/// precedes a new text: these tokens, the end of another text, or, for tokenizers without a token for that, a line
/// end.
std::vector<int64_t> encode_prompt(const data::Tokenizer& tokenizer, const std::string& text,
                                   bool begins = true);

}  // namespace fsdp::generate
