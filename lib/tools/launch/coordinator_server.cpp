#include "tools/launch/coordinator_server.h"

#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "base/util/clock.h"
#include "base/util/error.h"
#include "base/util/limits.h"
#include "base/util/log.h"
#include "base/util/sha256.h"
#include "base/util/text.h"

namespace fsdp::launch {
namespace {

constexpr double kSecondsToJoin = 5;
constexpr std::chrono::seconds kTimeToFinish{5};
constexpr int kMostUnknownPeers = 256;
constexpr double kSecondsForStrangers = 1;  ///< time that strangers have before they make room for others
constexpr int kListener = -1;               ///< number of the listener in the poller; peers have their ids
constexpr size_t kLongestLineBytes = 16 << 20;
constexpr int kMostWorkersOfANode = 1 << 16;
constexpr size_t kLongestShownBytes = 80;  ///< most bytes shown of a stranger's message

/// Raises the limit on open files for the connections of all nodes, some strangers, and the pipes of this
/// node's workers.
Descriptor with_room(Descriptor listener, const LaunchOptions& options) {
  const int64_t nodes = options.nnodes.max;
  constexpr int64_t kFilesOfAWorker = 3, kOthers = 16;
  util::make_room_for_files(nodes + std::min<int64_t>(nodes, kMostUnknownPeers) +
                                kFilesOfAWorker * options.nproc_per_node + kOthers,
                            concat(nodes, " nodes may meet here (--nnodes)"));
  return listener;
}

}  // namespace

CoordinatorServer::CoordinatorServer(Descriptor listener, const LaunchOptions& options, std::string token,
                                     double heartbeat_seconds)
    : listener_(with_room(std::move(listener), options)),
      token_(std::move(token)),
      heartbeat_seconds_(heartbeat_seconds),
      silence_seconds_(heartbeat_seconds * options.rendezvous.keep_alive_max_attempt),
      terms_(terms_of(options)),
      beat_(line_of({{"type", "beat"}})),
      next_heartbeat_(Clock::now()),
      coordinator_({.terms = terms_,
                    .join_timeout_seconds = options.rendezvous.join_timeout_seconds,
                    .last_call_timeout_seconds = options.rendezvous.last_call_timeout_seconds,
                    .stop_timeout_seconds = options.stop_timeout_seconds,
                    // The node may have received a later message from here. Its workers may then still be
                    // saving.
                    .fence_seconds = 2 * silence_seconds_ + options.shutdown_timeout_seconds,
                    .master_addr = options.local_addr.empty() ? options.rendezvous.host : options.local_addr,
                    .free_port = free_port,
                    .send =
                        [this](const std::vector<int>& ids, const Message& order) {
                          const std::string line = line_of(order);
                          for (int id : ids) send(id, line);
                        }},
                   Clock::now()) {
  poller_.watch(listener_.get(), kListener);
}

void CoordinatorServer::add_poll_entries(std::vector<pollfd>& entries) const {
  entries.push_back({poller_.fd(), POLLIN, 0});
}

void CoordinatorServer::step() {
  for (int id : poller_.ready()) id == kListener ? accept_all() : serve(id);
  look_at_the_clock();
  coordinator_.tick(Clock::now());
  settle();
}

void CoordinatorServer::accept_all() {
  // Bounded, so that the peers are served even while somebody keeps connecting.
  constexpr int kMostAtOnce = 1024;
  std::string address;
  for (int i = 0; i < kMostAtOnce; ++i) {
    if (peers_.size() >= static_cast<size_t>(kMostUnknownPeers) + static_cast<size_t>(terms_.nodes.max) &&
        !drop_a_stranger()) {
      break;
    }
    std::optional<Descriptor> socket = accept_from(listener_, address);
    if (!socket && errno != EMFILE && errno != ENFILE) return;
    if (!socket) {
      if (!std::exchange(warned_of_files_, true)) {
        util::log_warning(concat("cannot accept the connection of another node beside ", peers_.size(), ": ",
                                 util::errno_text(errno), "; raise the limit on open files, ulimit -n"));
      }
      break;
    }
    const auto now = Clock::now();
    const auto [entry, is_new] =
        peers_.emplace(next_id_++, Peer{LineSocket(std::move(*socket)), address, now, now});
    poller_.watch(entry->second.socket.fd(), entry->first);
    if (i + 1 == kMostAtOnce) return;
  }
  // Stops accepting until a connection has ended or the next heartbeat. Waiting connections would otherwise
  // wake poll() again and again.
  is_accepting_ = false;
  poller_.forget(listener_.get());
}

/// Disconnects the peer that has been connected for the longest time without joining, so that strangers do
/// not keep nodes out. Returns false if no such peer has had time to join.
bool CoordinatorServer::drop_a_stranger() {
  const auto oldest =
      std::ranges::find_if(peers_, [](const auto& entry) { return !entry.second.has_joined; });
  if (oldest == peers_.end() || util::seconds_since(oldest->second.connected_at) < kSecondsForStrangers)
    return false;
  report_stranger(oldest->second, "did not join");
  peers_.erase(oldest);
  return true;
}

void CoordinatorServer::serve(int id) {
  const auto found = peers_.find(id);
  if (found == peers_.end() || !found->second.socket.is_open()) return;
  Peer& peer = found->second;
  touch(id, peer);
  peer.socket.exchange();
  while (auto line = peer.socket.take_line()) {
    peer.heard_at = Clock::now();
    if (!peer.closing) handle(id, peer, *line);
  }
  tell_if_lost(id, peer);
}

/// Sends at once, so that orders for many nodes do not fill the memory of this process.
void CoordinatorServer::send(int id, std::string_view line) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return;
  found->second.socket.send(line);
  found->second.socket.flush();
  touch(id, found->second);
}

void CoordinatorServer::touch(int id, Peer& peer) {
  if (!std::exchange(peer.touched, true)) touched_.push_back(id);
}

/// Ends a step: sends the remaining messages, and drops peers that have left.
void CoordinatorServer::settle() {
  // The list grows in the loop if the loss of a node leads to orders.
  for (size_t i = 0; i < touched_.size(); ++i) {
    const int id = touched_[i];
    const auto found = peers_.find(id);
    if (found == peers_.end()) continue;
    Peer& peer = found->second;
    peer.touched = false;
    peer.socket.flush();
    if (peer.closing && !peer.socket.has_unsent()) peer.socket.close("");
    tell_if_lost(id, peer);
    if (!peer.socket.is_open()) {
      if (const std::string_view rest = peer.socket.rest(); !peer.is_known && !rest.empty()) {
        report_stranger(peer, concat("sent \"", one_line(rest, kLongestShownBytes), "\""));
      }
      peers_.erase(found);
      if (!std::exchange(is_accepting_, true)) poller_.watch(listener_.get(), kListener);
    } else if (peer.congested != peer.socket.has_unsent()) {
      peer.congested = !peer.congested;
      poller_.watch(peer.socket.fd(), id, peer.congested);
    }
  }
  touched_.clear();
}

void CoordinatorServer::tell_if_lost(int id, Peer& peer) {
  if (peer.socket.is_open() || !std::exchange(peer.has_joined, false)) return;
  --joined_;
  coordinator_.lost(id, peer.socket.failure(), peer.socket.peer_has_closed(), Clock::now());
}

void CoordinatorServer::report_stranger(Peer& peer, const std::string& what) {
  if (std::exchange(peer.is_known, true)) return;
  warn(concat("a program other than fsdp-launch connected from ", peer.address,
              " to the port where the nodes meet, and ", what,
              "; it was disconnected, and the run continues without it: if it is a node of the run, start "
              "fsdp-launch there, else give it, or the run, another port"));
}

/// Logs only the first few refusals, because strangers may keep connecting during the whole run.
void CoordinatorServer::warn(const std::string& message) {
  constexpr int kMostReported = 8;
  if (++refused_ > kMostReported) return;
  util::log_warning(concat(message, refused_ == kMostReported ? " (others will not be reported)" : ""));
}

void CoordinatorServer::handle(int id, Peer& peer, const std::string& line) {
  const std::optional<Message> message = parse_message(line);
  try {
    const std::string type = message ? message->at("type").get<std::string>() : "";
    if (!peer.has_joined) {
      if (type == "hello" && peer.nonces.node.empty()) return challenge(peer, *message);
      if (type == "join" && !peer.nonces.node.empty()) return join(id, peer, *message);
    } else if (type == "beat") {
      return;
    } else if (type == "ended") {
      return coordinator_.worker_ended(id, end_from(message->at("end")), Clock::now());
    } else if (type == "said") {
      const auto integer = [&](const char* name) {
        return static_cast<int>(message->at(name).get_ref<const Message::number_integer_t&>());
      };
      return coordinator_.worker_said(
          id, {integer("rank"), integer("incarnation"), report_from(message->at("report"))}, Clock::now());
    } else if (type == "round_ended") {
      return coordinator_.round_ended(id, ends_from(message->at("ends")), Clock::now());
    } else if (type == "leave") {
      const auto signal = message->at("signal").get_ref<const Message::number_integer_t&>();
      if (signal > 0 && signal < NSIG) return coordinator_.leave(id, static_cast<int>(signal), Clock::now());
    }
  } catch (const Message::exception&) {
    // A known type with malformed contents is treated like an unknown type.
  }
  report_stranger(peer, concat("sent \"", one_line(line, kLongestShownBytes), "\""));
  peer.closing = true;
  peer.socket.close("it sent a line that is not a message of fsdp-launch");
}

void CoordinatorServer::challenge(Peer& peer, const Message& message) {
  peer.nonces = {.node = message.at("nonce").get_ref<const std::string&>(), .coordinator = new_secret()};
  peer.socket.send(
      line_of({{"type", "challenge"}, {"version", kMessageVersion}, {"nonce", peer.nonces.coordinator}}));
}

void CoordinatorServer::join(int id, Peer& peer, const Message& message) {
  if (!util::same_secret(message.at("proof").get_ref<const std::string&>(),
                         proof_of_node(token_, peer.nonces))) {
    peer.is_known = true;
    peer.closing = true;
    warn(concat(
        "refused a connection from ", peer.address,
        ": it does not know the run's token; the run continues without it: if it is a node of the run, give it "
        "the same FSDP_LAUNCH_TOKEN or token file"));
    return peer.socket.close("");
  }
  NodeInfo node = node_from(message.at("node"));
  if (node.address.empty()) node.address = peer.address;
  std::string why = difference(terms_from(message.at("terms")), terms_);
  const std::string proof = proof_of_coordinator(token_, peer.nonces);
  if (why.empty() && (node.workers < 1 || node.workers > kMostWorkersOfANode || node.node_rank < 0 ||
                      node.node_rank >= terms_.nodes.max)) {
    why = "its number of workers or its node rank is out of range";
  }
  if (why.empty()) {
    peer.socket.send(line_of({{"type", "welcome"}, {"proof", proof}, {"silence_seconds", silence_seconds_}}));
    why = coordinator_.join(id, node, Clock::now());
  }
  peer.has_joined = why.empty();
  peer.closing = !why.empty();
  peer.is_known = true;
  if (peer.has_joined) {
    ++joined_;
    peer.socket.set_longest_line(kLongestLineBytes);
    return;
  }
  warn(concat("refused a node at ", peer.address, " (", node.host, ", pid ", node.pid, "): ", why));
  peer.socket.send(line_of({{"type", "refuse"}, {"proof", proof}, {"why", why}}));
}

void CoordinatorServer::look_at_the_clock() {
  const auto now = Clock::now();
  if (now < next_heartbeat_) return;
  next_heartbeat_ = now + util::duration_of(heartbeat_seconds_);
  for (auto& [id, peer] : peers_) {
    drop_if_silent(id, peer);
    if (peer.has_joined) send(id, beat_);
  }
  if (!std::exchange(is_accepting_, true)) poller_.watch(listener_.get(), kListener);
}

void CoordinatorServer::drop_if_silent(int id, Peer& peer) {
  const auto silence = [&] {
    return util::seconds_since(peer.has_joined ? peer.heard_at : peer.connected_at);
  };
  const auto is_late = [&] { return silence() > (peer.has_joined ? silence_seconds_ : kSecondsToJoin); };
  if (!peer.socket.is_open() || !is_late()) return;
  serve(id);  // this process may be late and may not have read what the node sent
  if (!peer.socket.is_open() || !is_late()) return;
  touch(id, peer);
  if (!peer.has_joined) {
    if (peer.socket.rest().empty())
      report_stranger(peer, concat("sent nothing in ", kSecondsToJoin, " seconds"));
    return peer.socket.close("");
  }
  peer.socket.close(concat("no heartbeat for ", util::fixed(silence(), 1), " seconds"));
  tell_if_lost(id, peer);
}

int CoordinatorServer::milliseconds_to_wait() const {
  Clock::time_point due = next_heartbeat_;
  if (const auto next = coordinator_.next_due()) due = std::min(due, *next);
  return milliseconds_until(due);
}

bool CoordinatorServer::is_done() const {
  if (!coordinator_.is_over()) return false;
  const auto now = Clock::now();
  if (over_since_ == Clock::time_point{}) over_since_ = now;
  return joined_ == 0 || now - over_since_ > kTimeToFinish;
}

}  // namespace fsdp::launch
