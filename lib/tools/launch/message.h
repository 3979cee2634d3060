#pragma once

// The messages between the nodes of a run: one JSON object per line, with a "type".
//
//   node to coordinator   hello (nonce), join (proof, NodeInfo, RunTerms), beat, ended (a worker),
//                         round_ended (all workers), leave; with replicas: said (rank, incarnation,
//                         WorkerReport)
//   coordinator to node   challenge (nonce, version), welcome (proof), refuse (proof, why), note (text),
//                         beat, start (NodePlacement), stop (why, is_failure), table (text of the wait
//                         table), finish (Verdict); with replicas: order (WorkerOrder)
//
// Neither side acts on messages before the other side has proved that it knows the token (token.h). Until
// then lines must be short, and the answer to a stranger reveals nothing.
//
// c10d's TCPStore, over which torchrun's agents meet, is not used, because agents have to poll a store and
// notice a dead store late. Workers do not need it either: rank 0 of each round hosts their store at
// MASTER_ADDR:MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE=False).

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/launch/epoch.h"
#include "tools/launch/options.h"
#include "tools/launch/verdict.h"
#include "tools/launch/worker_environment.h"

namespace fsdp::launch {

using Message = nlohmann::json;

inline constexpr int kMessageVersion = 4;

/// A node that joins.
struct NodeInfo {
  std::string host;
  int pid = 0;
  int node_rank = 0;  ///< number given by the user; ignored with RendezvousKind::kC10d
  int workers = 1;
  bool is_host = false;   ///< whether the coordinator runs in this process
  std::string address{};  ///< address given by the user, where other nodes reach it
  bool again = false;     ///< whether it has been in the run, was cut off, and has ended its workers
};

/// The options that must be equal on all nodes of a run.
struct RunTerms {
  int version = kMessageVersion;
  std::string run_id;
  NodeRange nodes;
  bool is_static = true;
  int max_restarts = 0;
  int replica_size = 0;  ///< 0: a run without replicas
  int min_replicas = 1;
};

/// An order for single workers of a node, in a run with replicas.
struct WorkerOrder {
  enum class OrderKind { kStart, kKill, kTell };
  OrderKind kind = OrderKind::kStart;
  std::vector<int> ranks{};
  int incarnation = 0;
  std::string line{};  ///< kTell: line for their channels (epoch.h)
};

RunTerms terms_of(const LaunchOptions& options);

/// Describes the first difference in a sentence. "" if there is none.
std::string difference(const RunTerms& found, const RunTerms& expected);

Message to_message(const NodeInfo& node);
Message to_message(const RunTerms& terms);
Message to_message(const WorkerEnd& end);
Message to_message(const std::vector<WorkerEnd>& ends);
Message to_message(const NodePlacement& placement);
Message to_message(const Verdict& verdict);
Message to_message(const WorkerOrder& order);
Message to_message(const WorkerReport& report);
Message to_message(const Epoch& epoch);

/// Read messages of to_message(). They throw nlohmann::json::exception for malformed messages. Texts of a
/// NodeInfo and a WorkerEnd are cut to the lengths used by to_message(), and made printable.
NodeInfo node_from(const Message& message);
RunTerms terms_from(const Message& message);
WorkerEnd end_from(const Message& message);
std::vector<WorkerEnd> ends_from(const Message& message);
NodePlacement placement_from(const Message& message);
Verdict verdict_from(const Message& message);
WorkerOrder order_from(const Message& message);
WorkerReport report_from(const Message& message);
Epoch epoch_from(const Message& message);

/// The object on a line. Nothing unless it has a "type", nests less deep than 16 levels, and repeats no key.
std::optional<Message> parse_message(std::string_view line);

/// The message as a line, without newline. Bytes that are not UTF-8 are replaced.
std::string line_of(const Message& message);

}  // namespace fsdp::launch
