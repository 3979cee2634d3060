#pragma once

// An unquantised GGUF file as a checkpoint of weights.

#include <cstdint>
#include <filesystem>
#include <optional>

#include "state/convert/hugging_face_model.h"

namespace fsdp::gguf {

/// Makes a checkpoint of a model, as checkpoint::import_model() does for safetensors. `source` is a GGUF
/// file, and the model's config follows from its metadata unless request.config names one. The checkpoint has
/// no tokenizer: data.tokenizer names it.
///
/// Throws Error(kCheckpoint) for an adapter, for one of several files, for quantised tensors, for an
/// architecture or metadata that our models do not have, and for weights that are missing, unexpected or
/// misshapen.
checkpoint::ShardedResult import_model(const checkpoint::ImportRequest& request);

}  // namespace fsdp::gguf
