#include "tools/launch/coordinator.h"

#include <algorithm>
#include <iterator>
#include <tuple>

#include "base/util/clock.h"
#include "base/util/error.h"
#include "base/util/log.h"
#include "base/util/text.h"
#include "tools/launch/signals.h"

namespace fsdp::launch {
namespace {

double seconds_between(Coordinator::Time from, Coordinator::Time to) {
  return std::chrono::duration<double>(to - from).count();
}

Coordinator::Time after(Coordinator::Time start, double seconds) {
  return start + util::duration_of(seconds);
}

}  // namespace

Coordinator::Coordinator(Settings settings, Time now)
    : settings_(std::move(settings)), gathering_since_(now) {}

std::string Coordinator::name_of_node(const Node& node) const {
  const std::string who = concat(node.info.host, ", pid ", node.info.pid);
  if (settings_.terms.is_static) return concat("node ", node.info.node_rank, " (", who, ")");
  return concat("the node ", node.info.host, " (pid ", node.info.pid, ")");
}

std::string Coordinator::join(int id, const NodeInfo& node, Time now) {
  if (phase_ == RunPhase::kOver) return "the run is over";
  if (node.again) {
    const auto cut_off = std::ranges::find_if(nodes_, [&](const auto& entry) {
      return entry.second.info.host == node.host && entry.second.info.pid == node.pid;
    });
    if (cut_off != nodes_.end())
      lost(cut_off->first, "it was cut off, and joins again", /*is_gone=*/true, now);
  }
  if (const auto holder = ids_by_node_rank_.find(node.node_rank); holder != ids_by_node_rank_.end()) {
    const Node& other = nodes_.at(holder->second);
    return concat("node rank ", node.node_rank, " has been in use by ", other.info.host, " (pid ",
                  other.info.pid, ") for ", util::fixed(seconds_between(other.joined_at, now), 1),
                  " seconds; give each node a --node-rank of its own");
  }
  nodes_[id] = {.info = node, .joined_at = now};
  if (settings_.terms.is_static) ids_by_node_rank_[node.node_rank] = id;
  const Node& joined = nodes_[id];
  const int most = settings_.terms.nodes.max;
  if (!is_in_round()) {
    gather(now);
  } else if (is_elastic() && present() <= most && phase_ == RunPhase::kRunning) {
    change_ = concat(name_of_node(joined), " has joined");
    stop_round(-1, {change_ + ", so all workers are restarted with it", /*is_failure=*/false});
  } else {
    fill_vacancies(now);
    if (joined.in_round) return "";
    const std::string text =
        vacancies_.empty()
            ? concat("the run already has its ", most, " nodes; this one waits in case one is lost")
            : concat("the place of a lost node is open for one with --nproc-per-node ",
                     vacancies_.begin()->second.workers, ", but this one has ", joined.info.workers,
                     " and waits");
    settings_.send({id}, {{"type", "note"}, {"text", text}});
  }
  return "";
}

std::vector<int> Coordinator::candidates() const {
  std::vector<int> ids;
  for (const auto& [id, node] : nodes_) {
    if (!node.leaving) ids.push_back(id);
  }
  const auto order = [&](int id) {
    const Node& node = nodes_.at(id);
    const int given = settings_.terms.is_static ? node.info.node_rank : 0;
    return std::tuple(given, !node.info.is_host, node.place < 0, node.place, id);
  };
  std::ranges::sort(ids, {}, order);
  return ids;
}

void Coordinator::gather(Time now) {
  const auto [least, most] = settings_.terms.nodes;
  const int present = this->present();
  if (present >= most) {
    std::vector<int> ids = candidates();
    ids.resize(static_cast<size_t>(most));
    return start_round(ids, now);
  }
  if (present < least) {
    last_call_.reset();
  } else if (!last_call_) {
    last_call_ = after(now, settings_.last_call_timeout_seconds);
  }
  if (last_call_ && now >= *last_call_) return start_round(candidates(), now);
  constexpr double kQuietSeconds = 5;
  if (present < least && !said_who_is_missing_ && now >= after(gathering_since_, kQuietSeconds)) {
    said_who_is_missing_ = true;
    util::log_info(missing(seconds_between(gathering_since_, now)));
  }
  if (present < least && now >= after(gathering_since_, settings_.join_timeout_seconds)) {
    finish({.exit_code = static_cast<int>(ErrorKind::kTimeout),
            .cause = missing(seconds_between(gathering_since_, now))});
  }
}

std::string Coordinator::missing(double waited_seconds) const {
  std::vector<std::string> here, absent;
  for (const auto& [id, node] : nodes_) here.push_back(name_of_node(node));
  for (int rank = 0; rank < settings_.terms.nodes.min && settings_.terms.is_static; ++rank) {
    if (!ids_by_node_rank_.contains(rank)) absent.push_back(concat("node ", rank));
  }
  return concat("waited ", util::fixed(waited_seconds, 1), " of ",
                util::fixed(settings_.join_timeout_seconds, 1), " seconds (join_timeout of --rdzv-conf) for ",
                settings_.terms.nodes.min, " nodes, but only ", here.size(),
                " joined: ", util::name_list(here),
                absent.empty() ? "" : "; missing: ", util::name_list(absent));
}

void Coordinator::start_round(const std::vector<int>& ids, Time now) {
  phase_ = RunPhase::kRunning;
  last_call_.reset();
  ends_.clear();
  silent_.clear();
  lost_cause_.clear();
  change_.clear();
  int world_size = 0, first_rank = 0;
  for (auto& [id, node] : nodes_) node.in_round = false;
  ids_by_first_rank_.clear();
  running_ = 0;
  for (int id : ids) world_size += nodes_[id].info.workers;
  placement_ = {.nodes = static_cast<int>(ids.size()),
                .world_size = world_size,
                .master_addr = settings_.master_addr,
                .master_port = settings_.free_port(),
                .run_id = settings_.terms.run_id,
                .restarts = restarts_,
                .max_restarts = settings_.terms.max_restarts};
  for (size_t place = 0; place < ids.size(); ++place) {
    placement_.node_rank = static_cast<int>(place);
    placement_.first_rank = first_rank;
    first_rank += nodes_[ids[place]].info.workers;
    start_node(ids[place], placement_);
  }
  if (settings_.terms.replica_size > 0) start_membership(now);
}

void Coordinator::start_node(int id, const NodePlacement& placement) {
  Node& node = nodes_[id];
  node.in_round = true;
  node.has_ended = false;
  node.order_of_ends.clear();
  node.place = placement.node_rank;
  node.first_rank = placement.first_rank;
  ids_by_first_rank_[node.first_rank] = id;
  ++running_;
  NodePlacement own = placement;
  own.workers_per_node = node.info.workers;
  settings_.send({id}, {{"type", "start"}, {"placement", to_message(own)}});
}

void Coordinator::stop_round(int except, const StopReason& why) {
  if (phase_ != RunPhase::kRunning) return;
  phase_ = RunPhase::kStopping;
  settings_.send(
      ids_of([&](int id, const Node& node) { return id != except && node.in_round && !node.has_ended; }),
      {{"type", "stop"}, {"why", why.text}, {"is_failure", why.is_failure}});
}

void Coordinator::worker_ended(int id, const WorkerEnd& end, Time now) {
  const auto node = nodes_.find(id);
  if (node == nodes_.end() || !node->second.in_round || !is_in_round()) return;
  if (membership_) {
    if (replicas_change() && has_rank(node->second, end.rank)) {
      membership_->ended(end.rank, end.incarnation, end, now);
    }
    return;
  }
  // Ends are ordered by when the host receives them, because the clocks of the nodes differ.
  node->second.order_of_ends.emplace(end.rank, ++events_);
  if (kind_of(end) == EndKind::kFinished) return;
  stop_round(id, {concat(name_of(end), " ", ending(end.status))});
}

void Coordinator::round_ended(int id, const std::vector<WorkerEnd>& ends, Time now) {
  const auto found = nodes_.find(id);
  if (found == nodes_.end() || !found->second.in_round || !is_in_round()) return;
  Node& node = found->second;
  if (std::exchange(node.has_ended, true)) return;
  --running_;
  std::set<int> ranks;
  for (WorkerEnd end : ends) {
    const int index = end.rank - node.first_rank;
    if (index < 0 || index >= node.info.workers || !ranks.insert(end.rank).second) continue;
    const auto heard = node.order_of_ends.find(end.rank);
    end.round = heard == node.order_of_ends.end() ? ++events_ : heard->second;
    ends_.push_back(std::move(end));
  }
  // Workers that have not begun training end at once, and then the other nodes' workers would wait for them.
  if (node.leaving != 0 && (membership_ || std::ranges::any_of(ends, was_preempted))) {
    stop_round(id, {concat(name_of_node(node), " was told to stop"), /*is_failure=*/false});
  }
  conclude_if_ended(now);
}

void Coordinator::leave(int id, int signal, Time now) {
  const auto node = nodes_.find(id);
  if (node == nodes_.end()) return;
  if (node->second.in_round && is_in_round()) {
    // The round continues, because its workers may save together with those of the other nodes, and finish.
    if (std::exchange(node->second.leaving, signal) == 0) ++leaving_;
    if (node->second.has_ended) {
      stop_round(id, {concat(name_of_node(node->second), " was told to stop by ", signal_name(signal)),
                      /*is_failure=*/false});
    }
    return;
  }
  const Verdict stopped{.exit_code = 128 + signal,
                        .cause = concat(name_of_node(node->second), " was told to stop by ",
                                        signal_name(signal), " while the nodes were joining")};
  const bool ends_all = settings_.terms.is_static || node->second.info.is_host;
  if (ends_all && phase_ == RunPhase::kGathering) return finish(stopped);
  erase(node);
  tick(now);
}

/// Removes a node and returns the next node.
std::map<int, Coordinator::Node>::iterator Coordinator::erase(std::map<int, Node>::iterator node) {
  const Node& gone = node->second;
  if (gone.leaving != 0) --leaving_;
  if (gone.in_round) ids_by_first_rank_.erase(gone.first_rank);
  if (gone.in_round && !gone.has_ended) --running_;
  if (settings_.terms.is_static) ids_by_node_rank_.erase(gone.info.node_rank);
  return nodes_.erase(node);
}

void Coordinator::lost(int id, const std::string& why, bool is_gone, Time now) {
  const auto node = nodes_.find(id);
  if (node == nodes_.end() || phase_ == RunPhase::kOver) return;
  const bool matters = node->second.in_round && !node->second.has_ended && is_in_round();
  const std::string cause = concat("lost ", name_of_node(node->second), ": ", why);
  if (matters && replicas_change()) {
    const int first_rank = node->second.first_rank, workers = node->second.info.workers;
    vacancies_[first_rank] = {workers, node->second.place};
    erase(node);
    membership_->node_lost(first_rank, workers, cause, !is_gone, now);
    return fill_vacancies(now);
  }
  if (matters) {
    const Node& silent = node->second;
    silent_.push_back({silent.place, silent.info.host, silent.first_rank, silent.info.workers});
  }
  erase(node);
  if (matters) {
    if (lost_cause_.empty()) lost_cause_ = cause;
    stop_round(-1, {cause});
    conclude_if_ended(now);
  } else {
    util::log_warning(cause);
    tick(now);
  }
}

void Coordinator::conclude_if_ended(Time now) {
  if (running_ == 0) conclude(now);
}

template <typename Condition>
std::vector<int> Coordinator::ids_of(const Condition& holds) const {
  std::vector<int> ids;
  for (const auto& [id, node] : nodes_) {
    if (holds(id, node)) ids.push_back(id);
  }
  return ids;
}

void Coordinator::send_table() {
  const std::string table = wait_table(ends_, silent_);
  if (table.empty()) return;
  settings_.send(ids_of([](int, const Node& node) { return node.in_round; }),
                 {{"type", "table"}, {"text", table}});
}

std::optional<WorkerEnd> Coordinator::ended_by_a_node_that_leaves() const {
  std::vector<WorkerEnd> stopped;
  for (const auto& [id, node] : nodes_) {
    if (node.leaving == 0) continue;
    for (const WorkerEnd& end : ends_) {
      const int index = end.rank - node.first_rank;
      const bool is_its = node.in_round && index >= 0 && index < node.info.workers;
      if (is_its && end.stop_signals_sent.contains(node.leaving) && kind_of(end) == EndKind::kStopped) {
        stopped.push_back(end);
      }
    }
  }
  return judge(stopped).culprit;
}

void Coordinator::conclude(Time now) {
  if (membership_) {
    std::erase_if(ends_, [&](const WorkerEnd& end) {
      return !verdict_ && membership_->is_lost(end.rank / settings_.terms.replica_size);
    });
  }
  Verdict verdict = verdict_ ? *verdict_ : judge(ends_);
  for (const WorkerEnd& end : ends_) {
    // Replaces the end by one with its last lines, which were unknown before.
    if (verdict_ && verdict.culprit && end.rank == verdict.culprit->rank && end.pid == verdict.culprit->pid) {
      verdict.culprit = end;
    }
  }
  if (verdict.culprit && kind_of(*verdict.culprit) == EndKind::kPeerLost) {
    // If a node was told to stop and the signal that it passed on ended its workers, lost peers are
    // consequences.
    if (auto stopped = ended_by_a_node_that_leaves()) {
      verdict = {.exit_code = stopped->status.code(), .culprit = std::move(stopped)};
    }
  }
  if (!lost_cause_.empty()) {
    // Ends of other workers, which lost their peers, are consequences.
    verdict = {.exit_code = static_cast<int>(ErrorKind::kPeerLost), .cause = lost_cause_};
  }
  if (verdict.is_failure()) send_table();
  bool host_leaves = false, any_leaves = false;
  ids_by_first_rank_.clear();
  running_ = 0;
  for (auto& [id, node] : nodes_) {
    node.in_round = false;
    any_leaves |= node.leaving != 0;
    host_leaves |= node.leaving != 0 && node.info.is_host;
  }
  if (settings_.terms.replica_size > 0) return finish(verdict);
  const bool finished = !verdict.culprit && verdict.cause.empty();
  const bool stays = is_elastic() && !host_leaves && present() >= settings_.terms.nodes.min;
  const bool membership = !verdict.is_failure() && (!change_.empty() || (any_leaves && stays));
  const bool saved_for_change = finished && !change_.empty() && verdict.exit_code != 0;
  if ((finished && !saved_for_change) || (any_leaves && !stays) ||
      (!membership && !saved_for_change && is_final(verdict, settings_.terms.max_restarts - restarts_))) {
    return finish(verdict);
  }
  if (membership || saved_for_change) {
    util::log_info(concat(change_.empty() ? "a node has left" : change_, ": restarting all workers"));
  } else {
    log_restart(verdict, ++restarts_, settings_.terms.max_restarts);
  }
  for (auto node = nodes_.begin(); node != nodes_.end();) {
    if (node->second.leaving) {
      settings_.send({node->first}, {{"type", "finish"}, {"verdict", to_message(verdict)}});
      node = erase(node);
    } else {
      ++node;
    }
  }
  phase_ = RunPhase::kGathering;
  gathering_since_ = now;
  said_who_is_missing_ = false;
  gather(now);
}

/// Whether replicas may still be lost, replaced and joined. False once a node was told to stop or the run is
/// over.
bool Coordinator::replicas_change() const {
  return membership_ && phase_ == RunPhase::kRunning && leaving_ == 0;
}

bool Coordinator::has_rank(const Node& node, int rank) const {
  return node.in_round && rank >= node.first_rank && rank < node.first_rank + node.info.workers;
}

void Coordinator::start_membership(Time now) {
  const int size = settings_.terms.replica_size, world_size = placement_.world_size;
  if (world_size % size != 0 || settings_.terms.min_replicas > world_size / size) {
    verdict_ = {.exit_code = static_cast<int>(ErrorKind::kUsage),
                .cause = concat("expected workers for a whole number of replicas, and for at least ",
                                settings_.terms.min_replicas, " (--min-replicas), of ", size,
                                " each (--replica-size), but all nodes together have ", world_size,
                                "; change --nproc-per-node")};
    return stop_round(-1, {verdict_->cause});
  }
  using OrderKind = WorkerOrder::OrderKind;
  membership_.emplace(Membership::Settings{
      .replicas = world_size / size,
      .replica_size = size,
      .min_replicas = settings_.terms.min_replicas,
      .max_restarts = settings_.terms.max_restarts,
      .join_timeout_seconds = settings_.join_timeout_seconds,
      .stop_timeout_seconds = settings_.stop_timeout_seconds,
      .fence_seconds = settings_.fence_seconds,
      .start = [this](int replica, int incarnation) { order(replica, OrderKind::kStart, incarnation); },
      .fence = [this](int replica, int incarnation) { order(replica, OrderKind::kKill, incarnation); },
      .pause =
          [this](int replica, int incarnation) {
            order(replica, OrderKind::kTell, incarnation,
                  {{"type", "pause"}, {"epoch", membership_->epoch().number}});
          },
      .break_off =
          [this](int replica, int incarnation, const std::string& why) {
            order(replica, OrderKind::kTell, incarnation,
                  {{"type", "break_off"}, {"epoch", membership_->epoch().number}, {"why", why}});
          },
      .begin =
          [this](int replica, int incarnation, const Epoch& epoch) {
            Epoch told = epoch;
            if (const auto first = node_of(epoch.replicas.front() * epoch.replica_size);
                first != nodes_.end()) {
              const NodeInfo& node = first->second.info;
              told.master_addr = node.is_host ? settings_.master_addr : node.address;
            }
            order(replica, OrderKind::kTell, incarnation, to_message(told));
          },
      .over =
          [this](const Verdict& verdict) {
            verdict_ = verdict;
            stop_round(-1, {verdict.is_failure() ? "the run cannot continue" : "the run is over",
                            verdict.is_failure()});
          }});
  membership_->begin(now);
}

/// Sends an order to the nodes that have workers of the replica.
void Coordinator::order(int replica, WorkerOrder::OrderKind kind, int incarnation, const Message& line) {
  const int size = settings_.terms.replica_size;
  std::map<int, WorkerOrder> orders;  // keyed by node
  const WorkerOrder order{
      .kind = kind, .incarnation = incarnation, .line = line.is_null() ? "" : line_of(line)};
  for (int rank = replica * size; rank < (replica + 1) * size; ++rank) {
    const auto node = node_of(rank);
    if (node == nodes_.end()) continue;
    orders.try_emplace(node->first, order).first->second.ranks.push_back(rank);
  }
  for (const auto& [id, own] : orders) {
    settings_.send({id}, {{"type", "order"}, {"order", to_message(own)}});
  }
}

/// The node in the round that has this worker, or nodes_.end().
std::map<int, Coordinator::Node>::iterator Coordinator::node_of(int rank) {
  const auto next = ids_by_first_rank_.upper_bound(rank);
  if (next == ids_by_first_rank_.begin()) return nodes_.end();
  const auto node = nodes_.find(std::prev(next)->second);
  return node != nodes_.end() && has_rank(node->second, rank) ? node : nodes_.end();
}

void Coordinator::worker_said(int id, const Said& said, Time now) {
  const auto node = nodes_.find(id);
  if (node == nodes_.end() || !replicas_change() || !has_rank(node->second, said.rank)) return;
  membership_->said(said.rank, said.incarnation, said.report, now);
}

/// Gives the places of lost nodes to waiting nodes with as many workers.
void Coordinator::fill_vacancies(Time now) {
  for (auto vacancy = vacancies_.begin(); vacancy != vacancies_.end() && replicas_change();) {
    const int first_rank = vacancy->first;
    const auto [workers, place] = vacancy->second;
    const auto fits = [&](const auto& entry) {
      const Node& node = entry.second;
      const bool has_place = !settings_.terms.is_static || node.info.node_rank == vacancy->second.place;
      return has_place && !node.in_round && node.info.workers == vacancy->second.workers;
    };
    const auto found = std::ranges::find_if(nodes_, fits);
    if (found == nodes_.end()) {
      ++vacancy;
      continue;
    }
    vacancy = vacancies_.erase(vacancy);
    util::log_info(concat(name_of_node(found->second), " takes the place of a lost node, ranks ", first_rank,
                          " to ", first_rank + workers - 1));
    placement_.node_rank = place;
    placement_.first_rank = first_rank;
    start_node(found->first, placement_);
    membership_->node_found(first_rank, workers, now);
  }
}

void Coordinator::finish(const Verdict& verdict) {
  phase_ = RunPhase::kOver;
  settings_.send(ids_of([](int, const Node&) { return true; }),
                 {{"type", "finish"}, {"verdict", to_message(verdict)}});
}

void Coordinator::tick(Time now) {
  if (phase_ == RunPhase::kGathering) gather(now);
  if (replicas_change()) membership_->tick(now);
}

std::optional<Coordinator::Time> Coordinator::next_due() const {
  if (replicas_change()) return membership_->next_due();
  if (phase_ != RunPhase::kGathering) return std::nullopt;
  if (last_call_) return last_call_;
  return after(gathering_since_, settings_.join_timeout_seconds);
}

}  // namespace fsdp::launch
