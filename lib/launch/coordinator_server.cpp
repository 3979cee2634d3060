#include "launch/coordinator_server.h"

#include <signal.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "util/clock.h"
#include "util/error.h"
#include "util/log.h"
#include "util/text.h"

namespace fsdp::launch {
namespace {

using util::concat;

constexpr std::chrono::seconds kTimeToJoin{5};
constexpr std::chrono::seconds kTimeToFinish{5};
constexpr size_t kMaxUnknownPeers = 256;
constexpr size_t kLongestLineBytes = 16 << 20;
constexpr int kMostWorkersOfANode = 1 << 16;

/// In constant time, so that the time does not reveal the position of a difference.
bool same_token(const std::string& a, const std::string& b) {
  unsigned different = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) different |= static_cast<unsigned char>(a[i] ^ b[i]);
  return different == 0;
}

}  // namespace

CoordinatorServer::CoordinatorServer(Descriptor listener, const LaunchOptions& options, std::string token,
                                     double heartbeat_seconds)
    : listener_(std::move(listener)),
      token_(std::move(token)),
      heartbeat_seconds_(heartbeat_seconds),
      silence_seconds_(heartbeat_seconds * options.rendezvous.keep_alive_max_attempt),
      terms_(terms_of(options)),
      next_heartbeat_(Clock::now()),
      coordinator_({.terms = terms_,
                    .join_timeout_seconds = options.rendezvous.join_timeout_seconds,
                    .last_call_timeout_seconds = options.rendezvous.last_call_timeout_seconds,
                    .stop_timeout_seconds = options.stop_timeout_seconds,
                    // Its launcher may have heard from here later, and then its workers may be saving.
                    .fence_seconds = 2 * silence_seconds_ + options.shutdown_timeout_seconds,
                    .master_addr = options.local_addr.empty() ? options.rendezvous.host : options.local_addr,
                    .free_port = free_port,
                    .send =
                        [this](int id, const Message& order) {
                          const auto peer = peers_.find(id);
                          if (peer != peers_.end()) peer->second.socket.send(line_of(order));
                        }},
                   Clock::now()) {}

void CoordinatorServer::add_poll_entries(std::vector<pollfd>& entries) const {
  if (peers_.size() < kMaxUnknownPeers + static_cast<size_t>(terms_.nodes.max)) {
    entries.push_back({listener_.get(), POLLIN, 0});
  }
  for (const auto& [id, peer] : peers_) peer.socket.add_poll_entry(entries);
}

void CoordinatorServer::step() {
  accept_all();
  for (auto& [id, peer] : peers_) serve(id, peer);
  for (auto& [id, peer] : peers_) drop_silent(id, peer);
  send_heartbeats();
  coordinator_.tick(Clock::now());
  for (auto& [id, peer] : peers_) {
    peer.socket.flush();
    if (peer.closing && !peer.socket.has_unsent()) peer.socket.close("");
    tell_if_lost(id, peer);
  }
  std::erase_if(peers_, [](const auto& entry) { return !entry.second.socket.is_open(); });
}

void CoordinatorServer::accept_all() {
  std::string address;
  while (peers_.size() < kMaxUnknownPeers + static_cast<size_t>(terms_.nodes.max)) {
    std::optional<Descriptor> socket = accept_from(listener_, address);
    if (!socket) return;
    const auto now = Clock::now();
    peers_.emplace(next_id_++, Peer{LineSocket(std::move(*socket)), address, now, now});
  }
}

void CoordinatorServer::serve(int id, Peer& peer) {
  if (!peer.socket.is_open()) return;
  peer.socket.exchange();
  while (auto line = peer.socket.take_line()) {
    peer.heard_at = Clock::now();
    if (!peer.closing) handle(id, peer, *line);
  }
  tell_if_lost(id, peer);
}

void CoordinatorServer::tell_if_lost(int id, Peer& peer) {
  if (peer.socket.is_open() || !std::exchange(peer.has_joined, false)) return;
  coordinator_.lost(id, peer.socket.failure(), peer.socket.peer_has_closed(), Clock::now());
}

void CoordinatorServer::handle(int id, Peer& peer, const std::string& line) {
  const std::optional<Message> message = parse_message(line);
  try {
    const std::string type = message ? message->at("type").get<std::string>() : "";
    if (!peer.has_joined) {
      if (type == "join") return join(id, peer, *message);
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
  if (!peer.has_joined && !std::exchange(warned_of_strangers_, true)) {
    util::log_warning(concat("a program other than fsdp-launch connected from ", peer.address,
                             " to the port where the nodes meet; such connections are closed"));
  }
  peer.socket.close("it sent a line that is not a message of fsdp-launch");
}

void CoordinatorServer::join(int id, Peer& peer, const Message& message) {
  std::string why;
  NodeInfo node = node_from(message.at("node"));
  if (node.address.empty()) node.address = peer.address;
  if (!same_token(message.at("token"), token_)) {
    why =
        "its token is not the run's; give all nodes the same FSDP_LAUNCH_TOKEN or token_file of --rdzv-conf";
  } else {
    why = difference(terms_from(message.at("terms")), terms_);
  }
  if (why.empty() && (node.workers < 1 || node.workers > kMostWorkersOfANode || node.node_rank < 0 ||
                      node.node_rank >= terms_.nodes.max)) {
    why = "its number of workers or its node rank is out of range";
  }
  if (why.empty()) {
    peer.socket.send(line_of({{"type", "welcome"}, {"silence_seconds", silence_seconds_}}));
    why = coordinator_.join(id, node, Clock::now());
  }
  peer.has_joined = why.empty();
  peer.closing = !why.empty();
  if (peer.has_joined) {
    peer.socket.set_longest_line(kLongestLineBytes);
    return;
  }
  util::log_warning(
      concat("refused a node at ", peer.address, " (", node.host, ", pid ", node.pid, "): ", why));
  peer.socket.send(line_of({{"type", "refuse"}, {"why", why}}));
}

void CoordinatorServer::drop_silent(int id, Peer& peer) {
  if (!peer.socket.is_open()) return;
  const auto now = Clock::now();
  if (!peer.has_joined) {
    if (now - peer.connected_at > kTimeToJoin) peer.socket.close("");
    return;
  }
  const double silence = std::chrono::duration<double>(now - peer.heard_at).count();
  if (silence <= silence_seconds_) return;
  peer.socket.close(concat("no heartbeat for ", util::fixed(silence, 1), " seconds"));
  tell_if_lost(id, peer);
}

void CoordinatorServer::send_heartbeats() {
  const auto now = Clock::now();
  if (now < next_heartbeat_) return;
  next_heartbeat_ = now + util::duration_of(heartbeat_seconds_);
  for (auto& [id, peer] : peers_) {
    if (peer.has_joined) peer.socket.send(line_of({{"type", "beat"}}));
  }
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
  const bool all_gone = std::ranges::none_of(peers_, [](const auto& peer) { return peer.second.has_joined; });
  return all_gone || now - over_since_ > kTimeToFinish;
}

}  // namespace fsdp::launch
