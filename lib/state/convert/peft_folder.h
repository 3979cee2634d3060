#pragma once

// Adapters (model/nn/lora.h) as PEFT (github.com/huggingface/peft) stores them: a folder with adapter_config.json and
// adapter_model.safetensors.

#include <c10/core/ScalarType.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "state/convert/consolidate.h"
#include "state/weights/adapter.h"
#include "state/weights/weights.h"

namespace fsdp::checkpoint {

/// Adapters to start from.
struct StoredAdapter {
  AdapterDescription description;  ///< base_identity is empty in a folder of PEFT
  Weights weights;
  std::map<std::string, std::string> names;  ///< of an adapter's parameter -> its name in `weights`
  std::string where;
};

/// Of a folder of PEFT, a checkpoint of adapters or a run with such checkpoints. kCheckpoint for anything else, and
/// for adapters of a kind that is not supported.
StoredAdapter open_adapter(const std::filesystem::path& path);

struct AdapterExport {
  std::filesystem::path checkpoint_folder, output;
  std::optional<c10::ScalarType> dtype{};  ///< nothing: as stored
  bool saturate = false;                   ///< Weights::set_saturating()
  bool overwrite = false;
};
/// Writes a folder of PEFT. kUsage for a checkpoint that holds all weights.
ConsolidateResult export_adapter(const AdapterExport& request);

}  // namespace fsdp::checkpoint
