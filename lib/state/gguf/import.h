#pragma once

// A GGUF file as a checkpoint of weights.

#include <cstdint>
#include <filesystem>
#include <optional>

#include "state/convert/hugging_face_model.h"

namespace fsdp::gguf {

/// Makes a checkpoint of a model, as checkpoint::import_model() does for safetensors. `source` is a GGUF
/// file, and the model's config follows from its metadata unless request.config names one. The checkpoint has
/// no tokenizer: data.tokenizer names it. Quantised tensors become f32, unless request.dtype is another type.
///
/// Throws Error(kCheckpoint) for an adapter, for one of several files, for an architecture or metadata that
/// our models do not have, and for weights that are missing, unexpected or misshapen.
checkpoint::ShardedResult import_model(const checkpoint::ImportRequest& request);

}  // namespace fsdp::gguf
