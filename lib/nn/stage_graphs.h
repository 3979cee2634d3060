#pragma once

// Stages as graphs of a device (util/device_graph.h): what a stage's forward and its backward launch is
// recorded once and from then on launched as one, for models whose kernels are shorter than the host's work
// to launch them. The idea is that of torch.cuda.make_graphed_callables() (PyTorch, "CUDA Graphs"), done
// stage by stage, so that what goes on between stages (gathers and reductions of units, hooks of autograd)
// stays as it is.
//
// A graph keeps addresses, so it is launched only where all that it read and wrote lies where it lay:
// parameters, buffers, the tensors of the context, places of gradients (kernels/gradient_sink.h). Units that
// are gathered into a pool of buffers come to the same places step after step; where one does not, another
// graph is recorded, up to kGraphsOfAStage, and beyond that the stage runs kernel by kernel. Inputs of a
// stage that are not another graph's output are copied.
//
// It is a hook; attach it after (so inside) one that shards the stage. Loss and gradients are those
// without it, bit for bit. Runs kernel by kernel as well: what autograd does not record (evaluation),
// dropout, documents, a cache, and a forward before the backward of the stage's last one has run.
//
// Limits: shapes may change from pass to pass, but each is another graph; hooks inside the
// stage run while it is recorded and then no more; nothing inside may gather or reduce, or use the targets of
// the context; what a stage returns is overwritten by its next pass; first derivatives only. The memory of
// activations stays reserved between steps.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nn/stage.h"
#include "util/device_graph.h"

namespace fsdp::nn {

/// How many of its first passes a stage runs kernel by kernel, in which libraries make their workspaces and
/// units find their places.
inline constexpr int kPassesBeforeGraphs = 3;
/// For each of forward and backward.
inline constexpr size_t kGraphsOfAStage = 4;

/// What has become of the passes through all stages, forward and backward each.
struct GraphCounts {
  int64_t recorded = 0;
  int64_t launched = 0;  ///< without those that were launched when they were recorded
  int64_t plain = 0;     ///< kernel by kernel, after the first passes
};

/// Makes graphs of the outermost stages inside `root` whose type_name() is in `stage_types`. Returns counts
/// that go on counting. Throws Error(kUsage) where there are none. What the stages throw while they are
/// recorded comes out of forward and backward as it would without, with the stage's name and the remedy.
std::shared_ptr<const GraphCounts> graph_stages(Stage& root, const std::vector<std::string>& stage_types,
                                                util::MakeGraphPool make_pool);

}  // namespace fsdp::nn
