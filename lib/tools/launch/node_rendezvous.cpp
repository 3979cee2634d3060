#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <deque>

#include "base/util/clock.h"
#include "base/util/error.h"
#include "base/util/log.h"
#include "base/util/sha256.h"
#include "base/util/system.h"
#include "base/util/text.h"
#include "tools/launch/coordinator_server.h"
#include "tools/launch/rendezvous.h"
#include "tools/launch/token.h"

namespace fsdp::launch {
namespace {

constexpr std::chrono::milliseconds kBetweenAttempts{250};
constexpr std::chrono::seconds kLongestAttempt{5};

/// The rendezvous of a node in a run of several nodes or with replicas.
class NodeRendezvous final : public Rendezvous {
 public:
  explicit NodeRendezvous(const LaunchOptions& options)
      : options_(options),
        heartbeat_seconds_(options.rendezvous.keep_alive_interval_seconds > 0
                               ? options.rendezvous.keep_alive_interval_seconds
                               : options.monitor_interval_seconds),
        endpoint_(concat(options.rendezvous.host, ":", options.rendezvous.port)),
        started_(Clock::now()),
        next_attempt_(started_) {
    const bool by_address = !options.rendezvous.is_static() && !options.rendezvous.is_host;
    const bool may_be_host = by_address ? is_local_host(options.rendezvous.host)
                                        : options.rendezvous.is_host.value_or(options.node_rank == 0);
    competes_ = may_be_host && by_address;
    if (may_be_host) become_host();
    if (may_be_host && !server_ && !by_address) {
      fail(ErrorKind::kUsage, "cannot listen at ", endpoint_,
           ", where the nodes meet: the port is in use; choose another with ",
           options.rendezvous.is_static() ? "--master-port" : "--rdzv-endpoint", " on all nodes");
    }
  }

  void add_poll_entries(std::vector<pollfd>& entries) override {
    if (server_) server_->add_poll_entries(entries);
    if (socket_) socket_->add_poll_entry(entries);
  }

  void step() override {
    if (server_) server_->step();
    if (outcome_) return;
    if (!socket_ && !in_round_ && Clock::now() >= next_attempt_) connect();
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
        if (!message) socket_->close("its messages are not those of fsdp-launch");
      } catch (const Message::exception&) {
        socket_->close("its messages are not those of this version of fsdp-launch");
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

  int milliseconds_to_wait() const override {
    Clock::time_point due = welcome_ ? next_heartbeat_ : next_attempt_;
    if (socket_ && !welcome_) due = connecting_since_ + kLongestAttempt;
    constexpr int kLookAgain = 100;  // the host waits until the other nodes are gone
    const int wait = outcome_ || (!socket_ && in_round_) ? kLookAgain : milliseconds_until(due);
    return server_ ? std::min(wait, server_->milliseconds_to_wait()) : wait;
  }

  std::optional<NodePlacement> take_start() override {
    std::optional<NodePlacement> start = std::exchange(start_, std::nullopt);
    if (!start) return start;
    in_round_ = true;
    if (!options_.is_multi_node()) return start;
    util::log_info(concat("node ", start->node_rank, " of ", start->nodes, ", ranks ", start->first_rank,
                          " to ", start->first_rank + start->workers_per_node - 1, " of ", start->world_size,
                          ", rank 0 at ", start->master_addr, ":", start->master_port));
    return start;
  }

  const std::optional<Verdict>& outcome() const override {
    // The host stays until all nodes have received the outcome.
    return outcome_ && server_ && !server_->is_done() && welcome_ ? none_ : outcome_;
  }

  void worker_ended(const WorkerEnd& end) override { send({{"type", "ended"}, {"end", to_message(end)}}); }

  std::optional<WorkerOrder> take_order() override {
    if (orders_.empty()) return std::nullopt;
    WorkerOrder order = std::move(orders_.front());
    orders_.pop_front();
    return order;
  }

  bool may_end_round() const override {
    return !options_.has_replicas() || stop_reason_ || outcome_ || leaving_ != 0;
  }

  void worker_said(int rank, int incarnation, const WorkerReport& report) override {
    send({{"type", "said"}, {"rank", rank}, {"incarnation", incarnation}, {"report", to_message(report)}});
  }

  void round_ended(const std::vector<WorkerEnd>& ends) override {
    orders_.clear();
    in_round_ = false;
    stop_reason_.reset();
    unreported_ = ends;
    if (!socket_) {
      show_own_table();
      if (leaving_ != 0) lose_host(" before this node was told to stop");
      return;
    }
    send({{"type", "round_ended"}, {"ends", to_message(ends)}});
  }

  void leave(int signal) override {
    if (std::exchange(leaving_, signal) != 0 && !in_round_) {
      return end(
          {.exit_code = 128 + signal, .cause = "told to stop twice while waiting for the other nodes"});
    }
    send({{"type", "leave"}, {"signal", signal}});
    // On the host, the coordinator answers after it has notified the other nodes.
    if (!in_round_ && (!server_ || !welcome_)) {
      end({.exit_code = 128 + signal, .cause = "told to stop while waiting for other nodes"});
    }
  }

  std::optional<StopReason> stop_reason() const override { return stop_reason_; }
  bool is_cut_off() const override { return !outcome_ && !cut_off_.empty(); }

 private:
  using Clock = std::chrono::steady_clock;

  void become_host() {
    const RendezvousOptions& rendezvous = options_.rendezvous;
    std::optional<Descriptor> listener = listen_at(rendezvous.host, rendezvous.port);
    if (!listener) return;  // another launcher on this machine became the host
    token_ = job_token(rendezvous, true);
    server_ =
        std::make_unique<CoordinatorServer>(std::move(*listener), options_, *token_, heartbeat_seconds_);
  }

  void connect() {
    connecting_since_ = Clock::now();
    next_attempt_ = connecting_since_ + kBetweenAttempts;
    const RendezvousOptions& rendezvous = options_.rendezvous;
    if (!server_) token_ = job_token(rendezvous, false);
    std::optional<Descriptor> socket;
    if (!token_) {
      last_failure_ = concat("there is no token file ", token_file(rendezvous),
                             "; copy that node's file, or set the same FSDP_LAUNCH_TOKEN on all nodes");
    } else {
      socket = start_connecting(rendezvous.host, rendezvous.port, last_failure_);
    }
    if (!socket) return connection_failed();
    socket_.emplace(std::move(*socket));
    nonces_ = {.node = new_secret()};
    send({{"type", "hello"}, {"nonce", nonces_.node}});
  }

  /// Ends a connection before the welcome, when the listener may be anybody.
  void greet(const Message& message) {
    const std::string type = message.at("type");
    if (type == "challenge" && nonces_.coordinator.empty()) {
      if (message.at("version") != kMessageVersion) {
        return socket_->close("it has another version of fsdp-launch; install the same version on all nodes");
      }
      nonces_.coordinator = message.at("nonce");
      return join();
    }
    if ((type != "welcome" && type != "refuse") || nonces_.coordinator.empty()) {
      return socket_->close("its messages are not those of fsdp-launch");
    }
    if (!util::same_secret(message.at("proof").get_ref<const std::string&>(),
                           proof_of_coordinator(*token_, nonces_))) {
      return socket_->close("it does not know the run's token, so it does not belong to this run");
    }
    if (type == "refuse") return refused(message.at("why"));
    welcome_ = true;
    constexpr size_t kLongestLineBytes = 16 << 20;
    socket_->set_longest_line(kLongestLineBytes);
    silence_seconds_ = message.at("silence_seconds");
    cut_off_.clear();
    heard_at_ = Clock::now();
  }

  void join() {
    const NodeInfo node{.host = util::host_name(),
                        .pid = ::getpid(),
                        .node_rank = options_.node_rank,
                        .workers = options_.nproc_per_node,
                        .is_host = server_ != nullptr,
                        .address = options_.local_addr,
                        .again = !cut_off_.empty()};
    send({{"type", "join"},
          {"proof", proof_of_node(*token_, nonces_)},
          {"node", to_message(node)},
          {"terms", to_message(terms_of(options_))}});
  }

  void connection_failed() {
    if (socket_) last_failure_ = socket_->failure();
    const bool is_gone = socket_ && socket_->peer_has_closed(), is_refused = socket_ && socket_->is_refused();
    // The coordinator does not answer nodes with a wrong token.
    const bool has_other_token = is_gone && !welcome_ && !nonces_.coordinator.empty();
    if (has_other_token) {
      last_failure_ = concat(
          "it closed the connection after this node had proved that it has the token, so its token is another one",
          options_.rendezvous.trust_network
              ? ""
              : "; set the same FSDP_LAUNCH_TOKEN on all nodes, or let them share the "
                "file of the token (token_file of --rdzv-conf)");
      if (!std::exchange(told_of_token_, true))
        util::log_warning(concat("the node where all meet, ", endpoint_, ": ", last_failure_));
    }
    nonces_ = {};
    socket_.reset();
    const std::string join_timeout =
        concat(options_.rendezvous.join_timeout_seconds, " seconds (join_timeout of --rdzv-conf)");
    if (std::exchange(welcome_, false)) {
      cut_off_ = last_failure_;
      if (is_gone || !options_.has_replicas() || leaving_ != 0) {
        show_own_table();
        return lose_host("");
      }
      // Replicas continue without this node, which may join again before the run ends.
      stop_reason_ = {concat("lost the node where all meet (", endpoint_, "): ", cut_off_,
                             "; trying to join again for up to ", join_timeout)};
      if (!in_round_) util::log_warning(std::exchange(stop_reason_, std::nullopt)->text);
      started_ = Clock::now();
      return;
    }
    if (!cut_off_.empty() && is_refused) return lose_host("; nobody listens there any more");
    if (util::seconds_since(started_) < options_.rendezvous.join_timeout_seconds) {
      if (competes_ && !server_) become_host();
      constexpr double kQuietSeconds = 5;
      if (util::seconds_since(started_) > kQuietSeconds && !std::exchange(said_what_is_awaited_, true)) {
        util::log_info(concat("waiting up to ", options_.rendezvous.join_timeout_seconds,
                              " seconds (join_timeout of --rdzv-conf) for the node where all meet, ",
                              endpoint_, ": ", last_failure_));
      }
      return;
    }
    if (!cut_off_.empty()) return lose_host(concat("; it could not be reached again within ", join_timeout));
    end({.exit_code = static_cast<int>(has_other_token ? ErrorKind::kUsage : ErrorKind::kTimeout),
         .cause = concat("waited ", util::fixed(util::seconds_since(started_), 1),
                         " seconds (join_timeout of --rdzv-conf) for the node where all meet, ", endpoint_,
                         ": ", last_failure_, "; is fsdp-launch running there, and is that its address?")});
  }

  /// Ends the node's part of the run, with the outcome of joining again.
  void lose_host(const std::string& afterwards) {
    end({.exit_code = static_cast<int>(ErrorKind::kPeerLost),
         .cause = concat("lost the node where all meet (", endpoint_, "): ", cut_off_, afterwards)});
  }

  void refused(const std::string& why) {
    if (!cut_off_.empty())
      return lose_host(concat("; after it was reached again, it refused this node: ", why));
    end({.exit_code = static_cast<int>(ErrorKind::kUsage),
         .cause = concat("the run at ", endpoint_, " refused this node: ", why)});
  }

  void handle(const Message& message) {
    if (!welcome_) return greet(message);
    const std::string type = message.at("type");
    if (type == "refuse") {
      refused(message.at("why"));
    } else if (type == "note") {
      util::log_info(message.at("text").get<std::string>());
    } else if (type == "table") {
      constexpr size_t kLongestTableBytes = 128 << 10;
      unreported_.clear();
      util::log_error(concat("state of the workers on all nodes:",
                             message.at("text").get<std::string>().substr(0, kLongestTableBytes)));
    } else if (type == "start") {
      unreported_.clear();
      start_ = placement_from(message.at("placement"));
      start_->role = options_.role;
      stop_reason_.reset();
    } else if (type == "order") {
      if (in_round_ || start_) orders_.push_back(order_from(message.at("order")));
    } else if (type == "stop") {
      stop_reason_ = {message.at("why"), message.at("is_failure")};
    } else if (type == "finish") {
      end(verdict_from(message.at("verdict")));
    }
  }

  void end(Verdict verdict) {
    if (in_round_ && !stop_reason_)
      stop_reason_ = {verdict.cause.empty() ? "the run is over" : verdict.cause, verdict.is_failure()};
    if (!outcome_) outcome_ = std::move(verdict);
    socket_.reset();  // closing tells the coordinator that the outcome has arrived
  }

  void show_own_table() {
    const std::string table = wait_table(std::exchange(unreported_, {}), {});
    if (!table.empty()) {
      util::log_error(concat("state of the workers on this node, without reports from other nodes:", table));
    }
  }

  void send(const Message& message) {
    if (socket_) socket_->send(line_of(message));
  }

  const LaunchOptions options_;
  const double heartbeat_seconds_;
  const std::string endpoint_;        ///< "host:port"
  Clock::time_point started_;         ///< when the search for the coordinator began
  std::string cut_off_;               ///< why the coordinator was lost, until it is found again
  std::optional<std::string> token_;  ///< nothing: its file does not exist yet
  Nonces nonces_{};                   ///< nonces of the current connection
  bool told_of_token_ = false;
  /// Several launchers on this machine may become the host. If two bind the port at once, Linux may let
  /// neither listen. A launcher that finds no host therefore tries again.
  bool competes_ = false;
  std::unique_ptr<CoordinatorServer> server_;  ///< only on the host
  std::optional<LineSocket> socket_;           ///< connection to the coordinator
  Clock::time_point connecting_since_{}, next_attempt_, next_heartbeat_{}, heard_at_{};
  std::string last_failure_ = "no answer";
  double silence_seconds_ = 0;  ///< time without a message after which the coordinator is lost
  bool welcome_ = false;
  bool said_what_is_awaited_ = false;
  int leaving_ = 0;
  bool in_round_ = false;
  std::vector<WorkerEnd> unreported_;  ///< this node's ends, until the table of all nodes has arrived
  std::optional<NodePlacement> start_;
  std::deque<WorkerOrder> orders_;
  std::optional<StopReason> stop_reason_;
  std::optional<Verdict> outcome_;
  const std::optional<Verdict> none_;
};

}  // namespace

std::unique_ptr<Rendezvous> make_node_rendezvous(const LaunchOptions& options) {
  return std::make_unique<NodeRendezvous>(options);
}

}  // namespace fsdp::launch
