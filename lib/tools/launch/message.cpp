#include "tools/launch/message.h"

#include "base/util/error.h"
#include "base/util/json.h"
#include "base/util/text.h"

namespace fsdp::launch {
namespace {

constexpr size_t kLongestNameBytes = 255, kLongestMessageBytes = 4096, kLongestPathBytes = 4096;
constexpr size_t kMostLastLines = 8, kLongestLastLineBytes = 512;  // see OutputPump::last_lines()

/// Reads an integer. Throws for any other number, whose conversion could overflow.
int integer_at(const Message& message, const char* name) {
  return static_cast<int>(message.at(name).get_ref<const Message::number_integer_t&>());
}

std::string text_or_none(const Message& message, const char* name, size_t most_bytes) {
  const auto found = message.find(name);
  if (found == message.end()) return "";
  return util::printable(std::string_view(found->get_ref<const std::string&>()).substr(0, most_bytes));
}

std::vector<std::string> lines_or_none(const Message& message, const char* name) {
  std::vector<std::string> lines;
  const auto found = message.find(name);
  if (found == message.end()) return lines;
  for (const Message& line : *found) {
    if (lines.size() == kMostLastLines) break;
    lines.push_back(one_line(line.get_ref<const std::string&>(), kLongestLastLineBytes));
  }
  return lines;
}

}  // namespace

RunTerms terms_of(const LaunchOptions& options) {
  return {.run_id = options.rendezvous.id,
          .nodes = options.nnodes,
          .is_static = options.rendezvous.is_static(),
          .max_restarts = options.max_restarts,
          .replica_size = options.replica_size,
          .min_replicas = options.min_replicas};
}

std::string difference(const RunTerms& found, const RunTerms& expected) {
  const auto differ = [](const char* option, const auto& a, const auto& b) {
    return concat("it was started with ", option, " ", a, ", the run with ", b);
  };
  const auto range = [](const NodeRange& nodes) { return concat(nodes.min, ":", nodes.max); };
  const auto backend = [](bool is_static) { return is_static ? "static" : "c10d"; };
  if (found.version != expected.version) {
    return "it has another version of fsdp-launch; install the same version on all nodes";
  }
  if (found.run_id != expected.run_id) return differ("--rdzv-id", found.run_id, expected.run_id);
  if (found.nodes != expected.nodes) return differ("--nnodes", range(found.nodes), range(expected.nodes));
  if (found.is_static != expected.is_static) {
    return differ("--rdzv-backend", backend(found.is_static), backend(expected.is_static));
  }
  if (found.max_restarts != expected.max_restarts) {
    return differ("--max-restarts", found.max_restarts, expected.max_restarts);
  }
  if (found.replica_size != expected.replica_size) {
    return differ("--replica-size", found.replica_size, expected.replica_size);
  }
  if (found.min_replicas != expected.min_replicas) {
    return differ("--min-replicas", found.min_replicas, expected.min_replicas);
  }
  return "";
}

Message to_message(const NodeInfo& node) {
  return {{"host", node.host},       {"pid", node.pid},         {"node_rank", node.node_rank},
          {"workers", node.workers}, {"is_host", node.is_host}, {"address", node.address},
          {"again", node.again}};
}

NodeInfo node_from(const Message& message) {
  return {.host = one_line(message.at("host").get_ref<const std::string&>(), kLongestNameBytes),
          .pid = integer_at(message, "pid"),
          .node_rank = integer_at(message, "node_rank"),
          .workers = integer_at(message, "workers"),
          .is_host = message.at("is_host"),
          .address = text_or_none(message, "address", kLongestNameBytes),
          .again = message.value("again", false)};
}

Message to_message(const RunTerms& terms) {
  return {{"version", terms.version},
          {"run_id", terms.run_id},
          {"min", terms.nodes.min},
          {"max", terms.nodes.max},
          {"is_static", terms.is_static},
          {"max_restarts", terms.max_restarts},
          {"replica_size", terms.replica_size},
          {"min_replicas", terms.min_replicas}};
}

RunTerms terms_from(const Message& message) {
  return {.version = message.at("version"),
          .run_id = message.at("run_id"),
          .nodes = {message.at("min"), message.at("max")},
          .is_static = message.at("is_static"),
          .max_restarts = message.at("max_restarts"),
          // Older versions do not have the key. They are refused by their version number.
          .replica_size = message.value("replica_size", 0),
          .min_replicas = message.value("min_replicas", 1)};
}

Message to_message(const WorkerEnd& end) {
  Message message = {{"rank", end.rank},
                     {"pid", end.pid},
                     {"exit_code", end.status.exit_code},
                     {"signal", end.status.signal},
                     {"round", end.round},
                     {"stop_signals_sent", end.stop_signals_sent},
                     {"told_after_failure", end.told_after_failure},
                     {"host", end.host},
                     {"incarnation", end.incarnation}};
  // Texts are shown only after failures.
  if (kind_of(end) != EndKind::kFinished) {
    message["last_lines"] = end.last_lines;
    message["message"] = end.message.substr(0, kLongestMessageBytes);
    message["log_path"] = end.log_path;
    if (end.standing.is_reported()) message["standing"] = to_json(end.standing);
  }
  return message;
}

WorkerEnd end_from(const Message& message) {
  std::set<int> stop_signals;
  for (const Message& signal : message.at("stop_signals_sent")) {
    stop_signals.insert(static_cast<int>(signal.get_ref<const Message::number_integer_t&>()));
  }
  const ExitStatus status{.exit_code = integer_at(message, "exit_code") & 0xff,
                          .signal = integer_at(message, "signal") & 0x7f};
  return {.rank = integer_at(message, "rank"),
          .pid = integer_at(message, "pid"),
          .status = status,
          .round = integer_at(message, "round"),
          .stop_signals_sent = std::move(stop_signals),
          .told_after_failure = message.at("told_after_failure").get_ref<const Message::boolean_t&>(),
          .host = one_line(message.at("host").get_ref<const std::string&>(), kLongestNameBytes),
          .last_lines = lines_or_none(message, "last_lines"),
          .message = text_or_none(message, "message", kLongestMessageBytes),
          .standing = standing_from(message.value("standing", Message::object())),
          .log_path = text_or_none(message, "log_path", kLongestPathBytes),
          .incarnation = integer_at(message, "incarnation")};
}

Message to_message(const std::vector<WorkerEnd>& ends) {
  Message list = Message::array();
  for (const WorkerEnd& end : ends) list.push_back(to_message(end));
  return list;
}

std::vector<WorkerEnd> ends_from(const Message& message) {
  std::vector<WorkerEnd> ends;
  for (const Message& end : message) ends.push_back(end_from(end));
  return ends;
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NodePlacement, node_rank, nodes, workers_per_node, first_rank, world_size,
                                   master_addr, master_port, run_id, restarts, max_restarts)

Message to_message(const NodePlacement& placement) { return placement; }

NodePlacement placement_from(const Message& message) { return message.get<NodePlacement>(); }

Message to_message(const Verdict& verdict) {
  Message message = {{"exit_code", verdict.exit_code}, {"cause", verdict.cause}};
  if (verdict.culprit) message["culprit"] = to_message(*verdict.culprit);
  return message;
}

Verdict verdict_from(const Message& message) {
  Verdict verdict{.exit_code = message.at("exit_code"), .cause = message.at("cause")};
  if (message.contains("culprit")) verdict.culprit = end_from(message["culprit"]);
  return verdict;
}

Message to_message(const WorkerOrder& order) {
  return {{"kind", static_cast<int>(order.kind)},
          {"ranks", order.ranks},
          {"incarnation", order.incarnation},
          {"line", order.line}};
}

WorkerOrder order_from(const Message& message) {
  return {.kind = static_cast<WorkerOrder::OrderKind>(integer_at(message, "kind")),
          .ranks = message.at("ranks"),
          .incarnation = message.at("incarnation"),
          .line = message.at("line")};
}

Message to_message(const WorkerReport& report) {
  if (report.kind == WorkerReport::ReportKind::kReady) return {{"type", "ready"}, {"port", report.port}};
  return {{"type", "stopped"},           {"epoch", report.epoch},
          {"step", report.step},         {"can_finish_step", report.can_finish_step},
          {"suspects", report.suspects}, {"port", report.port}};
}

WorkerReport report_from(const Message& message) {
  const auto& type = message.at("type").get_ref<const std::string&>();
  WorkerReport report;
  if (message.contains("port")) report.port = integer_at(message, "port");
  if (type == "ready") return report;
  // Throws if the type differs or anything is missing.
  const Message& step = message.at(type == "stopped" ? "step" : "a message that workers send");
  report.kind = WorkerReport::ReportKind::kStopped;
  report.epoch = integer_at(message, "epoch");
  report.step = step.get_ref<const Message::number_integer_t&>();
  report.can_finish_step = message.value("can_finish_step", false);
  constexpr size_t kMostSuspects = 1 << 16;
  for (const Message& rank : message.value("suspects", Message::array())) {
    if (report.suspects.size() == kMostSuspects) break;
    report.suspects.push_back(static_cast<int>(rank.get_ref<const Message::number_integer_t&>()));
  }
  return report;
}

Message to_message(const Epoch& epoch) {
  return {{"type", "epoch"},
          {"epoch", epoch.number},
          {"replicas", epoch.replicas},
          {"replica_size", epoch.replica_size},
          {"min_replicas", epoch.min_replicas},
          {"step", epoch.step},
          {"sources", epoch.sources},
          {"behind", epoch.behind},
          {"master_addr", epoch.master_addr},
          {"master_port", epoch.master_port}};
}

Epoch epoch_from(const Message& message) {
  return {.number = message.at("epoch"),
          .replicas = message.at("replicas"),
          .replica_size = message.at("replica_size"),
          .min_replicas = message.at("min_replicas"),
          .step = message.at("step"),
          .sources = message.at("sources"),
          .behind = message.at("behind"),
          .master_addr = message.at("master_addr"),
          .master_port = message.at("master_port")};
}

std::optional<Message> parse_message(std::string_view line) {
  constexpr util::JsonLimits kLimits{.deepest_level = 16};
  try {
    Message message = util::parse_json(line, kLimits);
    if (message.is_object() && message.contains("type") && message["type"].is_string()) return message;
  } catch (const util::JsonError&) {
    // The sender of a malformed line gets no answer.
  }
  return std::nullopt;
}

std::string line_of(const Message& message) {
  return message.dump(-1, ' ', false, Message::error_handler_t::replace);
}

}  // namespace fsdp::launch
