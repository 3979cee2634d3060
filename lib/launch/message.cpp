#include "launch/message.h"

#include "util/error.h"

namespace fsdp::launch {

RunTerms terms_of(const LaunchOptions& options) {
  return {.run_id = options.rendezvous.id,
          .nodes = options.nnodes,
          .is_static = options.rendezvous.backend == RendezvousOptions::Backend::kStatic,
          .max_restarts = options.max_restarts};
}

std::string difference(const RunTerms& found, const RunTerms& expected) {
  const auto differ = [](const char* option, const auto& a, const auto& b) {
    return util::concat("it was started with ", option, " ", a, ", the run with ", b);
  };
  const auto range = [](const NodeRange& nodes) { return util::concat(nodes.min, ":", nodes.max); };
  const auto backend = [](bool is_static) { return is_static ? "static" : "c10d"; };
  if (found.version != expected.version) {
    return "it has another version of fsdp-launch; install the same one on all nodes";
  }
  if (found.run_id != expected.run_id) return differ("--rdzv-id", found.run_id, expected.run_id);
  if (found.nodes != expected.nodes) return differ("--nnodes", range(found.nodes), range(expected.nodes));
  if (found.is_static != expected.is_static) {
    return differ("--rdzv-backend", backend(found.is_static), backend(expected.is_static));
  }
  if (found.max_restarts != expected.max_restarts) {
    return differ("--max-restarts", found.max_restarts, expected.max_restarts);
  }
  return "";
}

Message to_message(const NodeInfo& node) {
  return {{"host", node.host},
          {"pid", node.pid},
          {"node_rank", node.node_rank},
          {"workers", node.workers},
          {"is_host", node.is_host}};
}

NodeInfo node_from(const Message& message) {
  return {.host = message.at("host"),
          .pid = message.at("pid"),
          .node_rank = message.at("node_rank"),
          .workers = message.at("workers"),
          .is_host = message.at("is_host")};
}

Message to_message(const RunTerms& terms) {
  return {{"version", terms.version}, {"run_id", terms.run_id},       {"min", terms.nodes.min},
          {"max", terms.nodes.max},   {"is_static", terms.is_static}, {"max_restarts", terms.max_restarts}};
}

RunTerms terms_from(const Message& message) {
  return {.version = message.at("version"),
          .run_id = message.at("run_id"),
          .nodes = {message.at("min"), message.at("max")},
          .is_static = message.at("is_static"),
          .max_restarts = message.at("max_restarts")};
}

Message to_message(const WorkerEnd& end) {
  Message message = {{"rank", end.rank},
                     {"pid", end.pid},
                     {"exit_code", end.status.exit_code},
                     {"signal", end.status.signal},
                     {"round", end.round},
                     {"stop_signals_sent", end.stop_signals_sent},
                     {"host", end.host}};
  // Only a failure's words are ever shown.
  if (kind_of(end) != EndKind::kFinished) {
    constexpr size_t kLongestMessageBytes = 4096;
    message["last_lines"] = end.last_lines;
    message["message"] = end.message.substr(0, kLongestMessageBytes);
    message["log_path"] = end.log_path;
  }
  return message;
}

WorkerEnd end_from(const Message& message) {
  return {.rank = message.at("rank"),
          .pid = message.at("pid"),
          .status = {.exit_code = message.at("exit_code"), .signal = message.at("signal")},
          .round = message.at("round"),
          .stop_signals_sent = message.at("stop_signals_sent"),
          .host = message.at("host"),
          .last_lines = message.value("last_lines", std::vector<std::string>()),
          .message = message.value("message", ""),
          .log_path = message.value("log_path", "")};
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

Message to_message(const NodePlacement& placement) {
  return {{"node_rank", placement.node_rank},      {"nodes", placement.nodes},
          {"workers", placement.workers_per_node}, {"first_rank", placement.first_rank},
          {"world_size", placement.world_size},    {"master_addr", placement.master_addr},
          {"master_port", placement.master_port},  {"run_id", placement.run_id},
          {"restarts", placement.restarts},        {"max_restarts", placement.max_restarts}};
}

NodePlacement placement_from(const Message& message) {
  return {.node_rank = message.at("node_rank"),
          .nodes = message.at("nodes"),
          .workers_per_node = message.at("workers"),
          .first_rank = message.at("first_rank"),
          .world_size = message.at("world_size"),
          .master_addr = message.at("master_addr"),
          .master_port = message.at("master_port"),
          .run_id = message.at("run_id"),
          .role = "default",
          .restarts = message.at("restarts"),
          .max_restarts = message.at("max_restarts")};
}

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

std::optional<Message> parse_message(std::string_view line) {
  Message message = Message::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!message.is_object() || !message.contains("type") || !message["type"].is_string()) return std::nullopt;
  return message;
}

std::string line_of(const Message& message) {
  return message.dump(-1, ' ', false, Message::error_handler_t::replace);
}

}  // namespace fsdp::launch
