#pragma once

// Adapters (model/nn/lora.h) in the format of PEFT (github.com/huggingface/peft): a folder with
// adapter_config.json and adapter_model.safetensors.

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
  AdapterDescription description;  ///< base_identity is empty for a folder of PEFT
  Weights weights;
  std::map<std::string, std::string> names;  ///< adapter's parameter -> its name in `weights`
  std::string where;
};

/// Opens the adapters of a PEFT folder, of a checkpoint of adapters, or of a run with such checkpoints.
/// Throws Error(kCheckpoint) for anything else, and for adapters of an unsupported kind.
StoredAdapter open_adapter(const std::filesystem::path& path);

struct PeftExport {
  std::filesystem::path checkpoint_folder, output;
  std::optional<c10::ScalarType> dtype{};  ///< type of the weights; not given: as stored
  bool saturate = false;                   ///< Weights::set_saturating()
  bool overwrite = false;
};
/// Writes a PEFT folder. Throws Error(kUsage) for a checkpoint that holds all weights.
ConsolidateResult export_adapter(const PeftExport& request);

}  // namespace fsdp::checkpoint
