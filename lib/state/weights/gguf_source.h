#pragma once

// A GGUF file as a source of weights.

#include <c10/core/ScalarType.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/gguf/reader.h"
#include "state/weights/weights.h"

namespace fsdp::gguf {

/// Opens the weights under our names and in our layout; quantised tensors are f32. `config`, at `where`, is
/// described_config() or another config.json of the model.
///
/// Throws Error(kCheckpoint) for an adapter, for one of several files, for a file of another architecture
/// than the config's, and for another rotary scaling; kUsage as form_of() does.
std::shared_ptr<const checkpoint::TensorSource> open_source(std::shared_ptr<const Reader> file,
                                                            const nlohmann::json& config,
                                                            const std::string& where);
/// The same by the file's own description.
std::shared_ptr<const checkpoint::TensorSource> open_source(const std::filesystem::path& path);

}  // namespace fsdp::gguf
