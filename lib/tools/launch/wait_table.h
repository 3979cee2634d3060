#pragma once

// Who waited for whom when a round failed, among the workers of one node or of all nodes.

#include <string>
#include <vector>

#include "tools/launch/verdict.h"

namespace fsdp::launch {

/// A node that was lost before it reported the ends of its workers.
struct SilentNode {
  int node_rank = 0;
  std::string host{};
  int first_rank = 0;
  int workers = 1;
};

/// The table as lines for the log, each after "\n": where every worker stood (if there are many, workers at the
/// same place share a line), then one sentence for each collective in which workers waited, which names the
/// workers that had not reached it:
///
///     ranks 0, 1 and 3 wait in reduce_scatter of layers.1 (backward), step 4, for rank 2, which is
///     computing, step 4, 4.0 s after all_gather of layers.0 (backward)
///
/// Ranks issue the same collectives in the same order, so the number of ended collectives shows who is behind;
/// if a rank does not report it, the step does. "" when no worker reported where it stood. Some tens of KiB at
/// most, whatever the number of workers.
std::string wait_table(std::vector<WorkerEnd> ends, const std::vector<SilentNode>& silent);

}  // namespace fsdp::launch
