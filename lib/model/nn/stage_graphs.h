#pragma once

// Stages as device graphs (base/device/device_graph.h): the kernels of a stage's forward and of its backward
// are recorded once and then launched as one graph, for models whose kernels take less time than the host
// needs to launch them. As torch.cuda.make_graphed_callables() (PyTorch, "CUDA Graphs"), but stage by stage,
// so that all-gathers and reduce-scatters of FSDP units and autograd hooks between stages run as without
// graphs.
//
// A graph holds addresses, so it is launched only if everything that it reads and writes is still at the
// recorded addresses: parameters, buffers, the tensors of the context, places of gradients
// (model/kernels/gradient_sink.h). Units that are gathered into a buffer pool get the same addresses in every
// step. For other addresses another graph is recorded, up to kGraphsOfAStage; beyond that the stage runs
// kernel by kernel. Inputs that are not the output of a graph are copied.
//
// Attach the hook after (so inside) one that shards the stage. Loss and gradients do not change by a bit.
// Without autograd (evaluation), with dropout or a cache, and in a second forward before the backward of the
// first, the stage runs kernel by kernel too.
//
// With documents (StageContext::documents), each pass writes the bounds of its documents to memory that the
// graphs read. A graph is recorded for a number of documents, each as long as a row at most; those that a
// batch lacks are empty.
//
// Limits: each shape needs a graph of its own; hooks inside the stage run during recording only; nothing
// inside may gather or reduce, or use the targets of the context; a stage's output is overwritten by its next
// pass; first derivatives only. The memory of activations stays reserved between steps.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/device/device_graph.h"
#include "model/nn/stage.h"

namespace fsdp::nn {

/// First passes of a stage without graphs: libraries allocate workspaces, units get their lasting buffers.
inline constexpr int kPassesBeforeGraphs = 3;
/// Limit for each of forward and backward.
inline constexpr size_t kGraphsOfAStage = 4;

/// Passes through all stages; forward and backward count separately.
struct GraphCounts {
  int64_t recorded = 0;
  int64_t launched = 0;  ///< not counting the launch of a recording
  int64_t plain = 0;     ///< kernel by kernel, after the first passes
};

/// Makes graphs of the outermost stages inside `root` whose type_name() is in `stage_types`. Returns counts
/// that go on counting. Throws Error(kUsage) if there are no such stages. Errors during recording are thrown
/// by forward or backward, with the stage's name and the remedy.
std::shared_ptr<const GraphCounts> graph_stages(Stage& root, const std::vector<std::string>& stage_types,
                                                util::MakeGraphPool make_pool);

}  // namespace fsdp::nn
