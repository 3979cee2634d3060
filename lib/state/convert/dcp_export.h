#pragma once

// Converts a checkpoint to a checkpoint of torch.distributed.checkpoint, including the optimizer's state.

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/util/enum_names.h"
#include "base/util/progress_bar.h"
#include "state/convert/sharded_writer.h"

namespace fsdp::checkpoint {

/// The keys of the state dict that PyTorch will load.
enum class DcpLayout {
  kNested,      ///< {"model": ..., "optimizer": ...} of get_state_dict()
  kFlat,        ///< kNested with flatten_optimizer_state_dict=True
  kTorchtitan,  ///< a llama's weights at the top, flattened "optimizer", "train_state"; torchtitan's names
};
constexpr auto enum_names(DcpLayout) {
  return std::to_array<util::EnumName<DcpLayout>>(
      {{DcpLayout::kNested, "nested"}, {DcpLayout::kFlat, "flat"}, {DcpLayout::kTorchtitan, "torchtitan"}});
}

struct DcpExportRequest {
  std::filesystem::path checkpoint_folder;
  std::filesystem::path output;  ///< folder to write
  DcpLayout layout = DcpLayout::kNested;
  /// Keys of the two state dicts: "app.model" for {"app": {"model": ...}}. Not with kTorchtitan.
  std::string model_key = "model", optimizer_key = "optimizer";
  int64_t world_size = 0;  ///< number of files to cut the tensors into; 0: as many as the checkpoint has
  std::optional<c10::ScalarType> dtype{};  ///< floating-point weights are cast to it; nothing: as stored
  bool saturate = false;                   ///< Weights::set_saturating()
  bool overwrite = false;
  util::ByteProgress progress{};
};

struct DcpExportResult : ShardedResult {
  bool has_optimizer = false;  ///< false: weights only
};

/// Writes the weights, Adam's or AdamW's state and param_groups (with the rate of the next step), and the
/// number of steps done. torch.distributed.checkpoint.load() reads the result into a model and optimizer on
/// any number of ranks. Tensors are cut along their first dimension, like FSDP2's. A checkpoint of weights
/// becomes weights only. All hashes are verified first. Memory is bounded.
///
/// Throws Error(kCheckpoint) for adapters, other optimizers, units with different numbers of steps,
/// checkpoints of releases that did not record param_groups, kTorchtitan with a model other than llama, and
/// an output that exists.
DcpExportResult export_dcp(const DcpExportRequest& request);

}  // namespace fsdp::checkpoint
