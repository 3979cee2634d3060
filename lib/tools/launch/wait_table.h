#pragma once

// Shows which workers waited for which others when a round failed, on one node or on all nodes.

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

/// The table as lines for the log, each after "\n". First a line for each worker with what it was doing;
/// workers at the same place share a line if there are many. Then a sentence for each collective in which
/// workers waited, which names the workers that had not reached it:
///
///     ranks 0, 1 and 3 wait in reduce_scatter of layers.1 (backward), step 4, for rank 2, which is
///     computing, step 4, 4.0 s after all_gather of layers.0 (backward)
///
/// Ranks issue the same collectives in the same order, so the number of ended collectives shows which rank is
/// behind. If a rank does not report that number, its step is compared. "" if no worker reported what it was
/// doing. At most some tens of KiB for any number of workers.
std::string wait_table(std::vector<WorkerEnd> ends, const std::vector<SilentNode>& silent);

}  // namespace fsdp::launch
