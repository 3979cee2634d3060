#pragma once

// A checkpoint of torch.distributed.checkpoint as one of ours, the optimizer's state included.

#include <cstdint>
#include <optional>
#include <string>

#include "state/convert/hugging_face_model.h"

namespace fsdp::checkpoint {

struct DcpImportRequest : ImportRequest {
  /// Samples of the data that the run has read, at which training goes on; nothing: what the checkpoint says
  /// ("samples_seen"), or 0.
  std::optional<int64_t> samples_seen{};
};

struct DcpImportResult : ShardedResult {
  int64_t step = 0;
  bool has_optimizer = false;     ///< a run can resume from the checkpoint
  nlohmann::json param_groups{};  ///< as in a manifest (FORMAT.md)
  std::optional<int64_t> samples_seen{};
};

/// `source` is such a folder. Weights may have transformers' names or, of a llama, torchtitan's, after any prefix; the
/// optimizer's state is that of Adam or AdamW under parameters' names, as get_state_dict() returns it (flattened or
/// not), and becomes fp32. request.dtype is that of the weights. With optimizer state a run can resume from the result,
/// otherwise it holds weights only.
///
/// kCheckpoint for what import_model() refuses, what DcpFolder refuses, other optimizers, states that are missing or of
/// another shape, and parameters with unequal numbers of steps.
DcpImportResult import_dcp(const DcpImportRequest& request);

}  // namespace fsdp::checkpoint
