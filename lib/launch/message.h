#pragma once

// What the nodes of a run tell each other: one JSON object a line, told apart by "type".
//
//   node to coordinator   join (NodeInfo, RunTerms, token), beat, ended (a worker), round_ended (all of
//   them), leave
//   coordinator to node   welcome, refuse (why), note (text), beat, start (NodePlacement), stop (why), table
//   (text; who waited for whom when the round failed), finish (Verdict)
//
// Why not the wire format of c10d's TCPStore, over which torchrun's agents meet: a store can only be asked,
// so every agent has to poll it, and a dead one shows late; and torchrun's agents keep pickled Python objects
// there, so they could not be met anyway. Workers of any kind are served without it: rank 0 of each round
// keeps their store at MASTER_ADDR:MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE=False).

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launch/options.h"
#include "launch/verdict.h"
#include "launch/worker_environment.h"

namespace fsdp::launch {

using Message = nlohmann::json;

/// One that wants to take part.
struct NodeInfo {
  std::string host;
  int pid = 0;
  int node_rank = 0;  ///< as the user gave it; means nothing with Backend::kC10d
  int workers = 1;
  bool is_host = false;  ///< the coordinator runs in this process
};

/// What all nodes of a run must have been told alike.
struct RunTerms {
  int version = 1;  ///< of these messages
  std::string run_id;
  NodeRange nodes;
  bool is_static = true;
  int max_restarts = 0;
};

RunTerms terms_of(const LaunchOptions& options);

/// "" when they agree, else a sentence that names the first difference.
std::string difference(const RunTerms& found, const RunTerms& expected);

Message to_message(const NodeInfo& node);
Message to_message(const RunTerms& terms);
Message to_message(const WorkerEnd& end);
Message to_message(const std::vector<WorkerEnd>& ends);
Message to_message(const NodePlacement& placement);
Message to_message(const Verdict& verdict);

/// The reverse. Throw nlohmann::json::exception for what has not that form. Texts of a NodeInfo and a
/// WorkerEnd are cut to the length that they have where they are made, and hold nothing that a terminal
/// obeys.
NodeInfo node_from(const Message& message);
RunTerms terms_from(const Message& message);
WorkerEnd end_from(const Message& message);
std::vector<WorkerEnd> ends_from(const Message& message);
NodePlacement placement_from(const Message& message);
Verdict verdict_from(const Message& message);

/// The object on a line, or nothing if it is not one with a "type".
std::optional<Message> parse_message(std::string_view line);

/// The line for it, without its newline. Bytes that are no UTF-8 are replaced.
std::string line_of(const Message& message);

}  // namespace fsdp::launch
