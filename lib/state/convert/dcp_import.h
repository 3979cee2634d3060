#pragma once

// Converts a checkpoint of torch.distributed.checkpoint to this library's format, including the optimizer's
// state.

#include <cstdint>
#include <optional>

#include "state/convert/hugging_face_model.h"

namespace fsdp::checkpoint {

struct DcpImportRequest : ImportRequest {
  /// Number of data samples that the run has read, where training continues. Not given: the checkpoint's
  /// "samples_seen", or 0.
  std::optional<int64_t> samples_seen{};
};

struct DcpImportResult : ShardedResult {
  int64_t step = 0;
  bool has_optimizer = false;     ///< whether a run can resume from the checkpoint
  nlohmann::json param_groups{};  ///< param_groups of the manifest (FORMAT.md)
  std::optional<int64_t> samples_seen{};
};

/// Imports the folder request.source. After any prefix, weights have transformers' names or, for a llama,
/// torchtitan's. The optimizer's state must be Adam's or AdamW's under the parameters' names, as
/// get_state_dict() returns it (flattened or not), and becomes fp32. request.dtype applies to the weights. A
/// run can resume from the result if it has optimizer state. Otherwise the result holds weights only.
///
/// Throws Error(kCheckpoint) for what import_model() refuses, what DcpFolder refuses, other optimizers,
/// states that are missing or of another shape, and parameters with unequal numbers of steps.
DcpImportResult import_dcp(const DcpImportRequest& request);

}  // namespace fsdp::checkpoint
