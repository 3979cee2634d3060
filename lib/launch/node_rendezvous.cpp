#include <unistd.h>

#include <algorithm>

#include "launch/rendezvous.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/host_name.h"
#include "util/log.h"
#include "util/text.h"

namespace fsdp::launch {
namespace {

using util::concat;
using util::ErrorKind;

constexpr std::chrono::milliseconds kBetweenAttempts{250};
constexpr std::chrono::seconds kLongestAttempt{5};

bool is_static(const LaunchOptions& options) {
  return options.rendezvous.backend == RendezvousOptions::Backend::kStatic;
}

}  // namespace

NodeRendezvous::NodeRendezvous(const LaunchOptions& options)
    : options_(options),
      heartbeat_seconds_(options.rendezvous.keep_alive_interval_seconds > 0
                             ? options.rendezvous.keep_alive_interval_seconds
                             : options.monitor_interval_seconds),
      endpoint_(concat(options.rendezvous.host, ":", options.rendezvous.port)),
      started_(Clock::now()),
      next_attempt_(started_) {
  const bool by_address = !is_static(options) && !options.rendezvous.is_host;
  const bool may_be_host = by_address ? is_local_host(options.rendezvous.host)
                                      : options.rendezvous.is_host.value_or(options.node_rank == 0);
  competes_ = may_be_host && by_address;
  if (may_be_host) become_host();
  if (may_be_host && !server_ && !by_address) {
    util::fail(ErrorKind::kUsage, "cannot listen at ", endpoint_,
               ", where the nodes meet: the port is in use; choose another with ",
               is_static(options) ? "--master-port" : "--rdzv-endpoint", " on all nodes");
  }
}

void NodeRendezvous::become_host() {
  const RendezvousOptions& rendezvous = options_.rendezvous;
  std::optional<Descriptor> listener = listen_at(rendezvous.host, rendezvous.port);
  if (!listener) return;  // another launcher on this machine was first
  token_ = *job_token(rendezvous.token_file, true);
  const std::string address = options_.local_addr.empty() ? rendezvous.host : options_.local_addr;
  server_ = std::make_unique<CoordinatorServer>(
      std::move(*listener),
      CoordinatorServer::Settings{.token = token_,
                                  .heartbeat_seconds = heartbeat_seconds_,
                                  .heartbeats_missed = rendezvous.keep_alive_max_attempt},
      Coordinator::Settings{.terms = terms_of(options_),
                            .join_timeout_seconds = rendezvous.join_timeout_seconds,
                            .last_call_timeout_seconds = rendezvous.last_call_timeout_seconds,
                            .master_addr = address,
                            .free_port = free_port,
                            .send = {}});
}

void NodeRendezvous::add_poll_entries(std::vector<pollfd>& entries) {
  if (server_) server_->add_poll_entries(entries);
  if (socket_) socket_->add_poll_entry(entries);
}

void NodeRendezvous::step() {
  if (server_) server_->step();
  if (outcome_) return;
  if (!socket_ && Clock::now() >= next_attempt_) connect();
  if (!socket_) return;
  if (welcome_ && Clock::now() >= next_heartbeat_) {
    next_heartbeat_ = Clock::now() + util::duration_of(heartbeat_seconds_);
    send({{"type", "beat"}});
  }
  socket_->exchange();
  while (socket_) {
    const auto line = socket_->take_line();
    if (!line) break;
    heard_at_ = Clock::now();
    const std::optional<Message> message = parse_message(*line);
    try {
      if (message) handle(*message);
      if (!message) socket_->close("it does not talk as fsdp-launch does");
    } catch (const Message::exception&) {
      socket_->close("it does not talk as this version of fsdp-launch does");
    }
  }
  if (!socket_) return;
  if (welcome_ && util::seconds_since(heard_at_) > silence_seconds_) {
    socket_->close(concat("no heartbeat for ", util::fixed(util::seconds_since(heard_at_), 1), " seconds"));
  } else if (!welcome_ && Clock::now() - connecting_since_ > kLongestAttempt) {
    socket_->close("no answer");
  }
  if (!socket_->is_open()) connection_failed();
}

void NodeRendezvous::connect() {
  connecting_since_ = Clock::now();
  next_attempt_ = connecting_since_ + kBetweenAttempts;
  const RendezvousOptions& rendezvous = options_.rendezvous;
  const std::optional<std::string> token = server_ ? token_ : job_token(rendezvous.token_file, false);
  std::optional<Descriptor> socket;
  if (!token) {
    last_failure_ = concat("there is no token file ", rendezvous.token_file);
  } else {
    socket = start_connecting(rendezvous.host, rendezvous.port, last_failure_);
  }
  if (!socket) return connection_failed();
  socket_.emplace(std::move(*socket));
  constexpr size_t kLongestLineBytes = 16 << 20;
  socket_->set_longest_line(kLongestLineBytes);
  const NodeInfo node{.host = util::host_name(),
                      .pid = ::getpid(),
                      .node_rank = options_.node_rank,
                      .workers = options_.nproc_per_node,
                      .is_host = server_ != nullptr};
  send({{"type", "join"},
        {"token", *token},
        {"node", to_message(node)},
        {"terms", to_message(terms_of(options_))}});
}

void NodeRendezvous::connection_failed() {
  if (socket_) last_failure_ = socket_->failure();
  socket_.reset();
  if (welcome_) {
    show_own_table();
    return end({.exit_code = static_cast<int>(ErrorKind::kPeerLost),
                .cause = concat("lost the node where all meet (", endpoint_, "): ", last_failure_)});
  }
  if (util::seconds_since(started_) < options_.rendezvous.join_timeout_seconds) {
    if (competes_ && !server_) become_host();
    constexpr double kQuietSeconds = 5;
    if (util::seconds_since(started_) > kQuietSeconds && !std::exchange(said_what_is_awaited_, true)) {
      util::log_info(concat("waiting up to ", options_.rendezvous.join_timeout_seconds,
                            " seconds (join_timeout of --rdzv-conf) for the node where all meet, ", endpoint_,
                            ": ", last_failure_));
    }
    return;
  }
  end({.exit_code = static_cast<int>(ErrorKind::kTimeout),
       .cause = concat("waited ", util::fixed(util::seconds_since(started_), 1),
                       " seconds (join_timeout of --rdzv-conf) for the node where all meet, ", endpoint_,
                       ": ", last_failure_, "; is fsdp-launch running there, and is that its address?")});
}

void NodeRendezvous::handle(const Message& message) {
  const std::string type = message.at("type");
  if (type == "welcome") {
    welcome_ = true;
    silence_seconds_ = message.at("silence_seconds");
  } else if (type == "refuse") {
    end({.exit_code = static_cast<int>(ErrorKind::kUsage),
         .cause =
             concat("the run at ", endpoint_, " refused this node: ", message.at("why").get<std::string>())});
  } else if (type == "note") {
    util::log_info(message.at("text").get<std::string>());
  } else if (type == "table") {
    constexpr size_t kLongestTableBytes = 128 << 10;
    untold_.clear();
    util::log_error(concat("where the workers of all nodes stood:",
                           message.at("text").get<std::string>().substr(0, kLongestTableBytes)));
  } else if (type == "start") {
    untold_.clear();
    start_ = placement_from(message.at("placement"));
    start_->role = options_.role;
    stop_reason_.reset();
  } else if (type == "stop") {
    stop_reason_ = message.at("why");
  } else if (type == "finish") {
    end(verdict_from(message.at("verdict")));
  }
}

std::optional<NodePlacement> NodeRendezvous::take_start() {
  std::optional<NodePlacement> start = std::exchange(start_, std::nullopt);
  if (!start) return start;
  in_round_ = true;
  util::log_info(concat("node ", start->node_rank, " of ", start->nodes, ", ranks ", start->first_rank,
                        " to ", start->first_rank + start->workers_per_node - 1, " of ", start->world_size,
                        ", rank 0 at ", start->master_addr, ":", start->master_port));
  return start;
}

void NodeRendezvous::end(Verdict verdict) {
  if (in_round_ && !stop_reason_) stop_reason_ = verdict.cause.empty() ? "the run is over" : verdict.cause;
  if (!outcome_) outcome_ = std::move(verdict);
  socket_.reset();  // the coordinator knows by that
}

const std::optional<Verdict>& NodeRendezvous::outcome() const {
  // The host stays until all have heard how the run ended.
  return outcome_ && server_ && !server_->is_done() && welcome_ ? none_ : outcome_;
}

void NodeRendezvous::worker_ended(const WorkerEnd& end) {
  send({{"type", "ended"}, {"end", to_message(end)}});
}

void NodeRendezvous::round_ended(const std::vector<WorkerEnd>& ends) {
  in_round_ = false;
  stop_reason_.reset();
  untold_ = ends;
  if (!socket_) return show_own_table();
  send({{"type", "round_ended"}, {"ends", to_message(ends)}});
}

void NodeRendezvous::show_own_table() {
  const std::string table = wait_table(std::exchange(untold_, {}), {});
  if (!table.empty()) {
    util::log_error(
        concat("where the workers of this node stood, with nothing heard of the other nodes:", table));
  }
}

void NodeRendezvous::leave(int signal) {
  if (std::exchange(leaving_, signal) != 0 && !in_round_) {
    return end({.exit_code = 128 + signal, .cause = "told to stop twice while waiting for the other nodes"});
  }
  send({{"type", "leave"}, {"signal", signal}});
  // The host's coordinator answers, and tells the others first.
  if (!in_round_ && (!server_ || !welcome_)) {
    end({.exit_code = 128 + signal, .cause = "told to stop while waiting for other nodes"});
  }
}

void NodeRendezvous::send(const Message& message) {
  if (socket_) socket_->send(line_of(message));
}

int NodeRendezvous::milliseconds_to_wait() const {
  Clock::time_point due = welcome_ ? next_heartbeat_ : next_attempt_;
  if (socket_ && !welcome_) due = connecting_since_ + kLongestAttempt;
  int wait = outcome_ ? 100 : 0;  // as the host, until the others are gone
  if (!outcome_) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(due - Clock::now()).count();
    wait = static_cast<int>(std::max<int64_t>(0, left));
  }
  return server_ ? std::min(wait, server_->milliseconds_to_wait()) : wait;
}

}  // namespace fsdp::launch
