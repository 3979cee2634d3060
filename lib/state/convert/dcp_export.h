#pragma once

// A checkpoint as one of torch.distributed.checkpoint, the optimizer's state included.

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/util/enum_names.h"
#include "base/util/progress_bar.h"

namespace fsdp::checkpoint {

/// The keys of the state dict that PyTorch is to load.
enum class DcpLayout {
  kNested,      ///< {"model": ..., "optimizer": ...} of get_state_dict()
  kFlat,        ///< the same with flatten_optimizer_state_dict=True
  kTorchtitan,  ///< a llama's weights at the top, flattened "optimizer", "train_state"; torchtitan's names
};
constexpr auto enum_names(DcpLayout) {
  return std::to_array<util::EnumName<DcpLayout>>(
      {{DcpLayout::kNested, "nested"}, {DcpLayout::kFlat, "flat"}, {DcpLayout::kTorchtitan, "torchtitan"}});
}

struct DcpExportRequest {
  std::filesystem::path checkpoint_folder;
  std::filesystem::path output;  ///< the folder
  DcpLayout layout = DcpLayout::kNested;
  /// Keys of the two state dicts: "app.model" for {"app": {"model": ...}}. Not with kTorchtitan.
  std::string model_key = "model", optimizer_key = "optimizer";
  int64_t world_size = 0;  ///< files to cut the tensors into; 0: as many as the checkpoint has
  std::optional<c10::ScalarType> dtype{};  ///< floating-point weights are cast to it; nothing: as stored
  bool saturate = false;                   ///< Weights::set_saturating()
  bool overwrite = false;
  util::ByteProgress progress{};
};

struct DcpExportResult {
  std::filesystem::path folder;
  int64_t files = 0;
  int64_t tensors = 0;
  int64_t bytes = 0;           ///< of the tensors
  bool has_optimizer = false;  ///< else weights alone
};

/// Writes weights, Adam's or AdamW's state and param_groups (whose rate is that of the next step), and the steps done.
/// torch.distributed.checkpoint.load() reads it into a model and optimizer on any number of ranks; tensors are cut along
/// their first dimension as FSDP2 cuts them. A checkpoint of weights gives weights alone. All hashes are verified first,
/// and memory is bounded.
///
/// kCheckpoint for adapters, other optimizers, units with fewer steps than others, checkpoints of releases that did not
/// record param_groups, kTorchtitan with a model other than llama, and an output that exists.
DcpExportResult export_dcp(const DcpExportRequest& request);

}  // namespace fsdp::checkpoint
