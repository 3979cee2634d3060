#pragma once

// Launchers of many nodes of one run, as connections of this process: each joins where the nodes meet, is
// told to start, says that its workers have finished, and is told how the run ended, as fsdp-launch does.
// Each has an address of its own in 127.1.0.0/16, so that thousands that come again and again do not use up
// the ports of one.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <deque>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/util/error.h"
#include "base/util/limits.h"
#include "tools/launch/endpoint.h"
#include "tools/launch/message.h"
#include "tools/launch/poller.h"
#include "tools/launch/token.h"

namespace fsdp::testing {

class NodeCrowd {
 public:
  using Clock = std::chrono::steady_clock;

  struct Plan {
    int port = 0;  ///< of the loopback address, where the nodes meet
    int nodes = 2;
    int workers = 1;  ///< of each
  };

  /// For a run of that many nodes with fixed ranks, which the host_command() starts.
  explicit NodeCrowd(const Plan& plan) : plan_(plan) {
    util::make_room_for_files(plan.nodes + 16, concat("the connections of ", plan.nodes, " nodes"));
  }

  /// The arguments of the fsdp-launch that is node 0, without those for its workers' program. Its workers end
  /// at once. Nodes of a crowd send no heartbeats, and are not missed.
  static std::vector<std::string> host_command(const std::string& program, const Plan& plan,
                                               const std::string& join_timeout) {
    return {program,
            "--nnodes",
            std::to_string(plan.nodes),
            "--node-rank",
            "0",
            "--master-port",
            std::to_string(plan.port),
            "--rdzv-id",
            kRun,
            "--rdzv-conf",
            "trust_network=true,keep_alive_max_attempt=100000,join_timeout=" + join_timeout,
            "--nproc-per-node",
            std::to_string(plan.workers),
            "--",
            "/bin/true"};
  }

  /// The launcher of a node, which joins as process `pid`.
  void join(int node_rank, int pid) {
    const launch::NodeInfo node{
        .host = "crowd", .pid = pid, .node_rank = node_rank, .workers = plan_.workers};
    const launch::RunTerms terms{.run_id = kRun, .nodes = {plan_.nodes, plan_.nodes}};
    const launch::Nonces nonces{.node = launch::new_secret()};
    Member& member =
        add(address(1, node_rank), node_rank, launch::line_of({{"type", "hello"}, {"nonce", nonces.node}}));
    member.nonces = nonces;
    member.join = {
        {"type", "join"}, {"node", launch::to_message(node)}, {"terms", launch::to_message(terms)}};
  }
  /// Something else, at 127.2.0.0, that sends this line.
  void add_stranger(const std::string& line) { add(address(2, 0), -1, line); }

  /// Handles what has arrived, after waiting for it.
  void step(int wait_ms) {
    pollfd entry{.fd = poller_.fd(), .events = POLLIN, .revents = 0};
    ::poll(&entry, 1, wait_ms);
    for (int number : poller_.ready()) {
      Member& member = members_[static_cast<size_t>(number)];
      if (!member.socket.is_open()) continue;
      member.socket.exchange();
      while (const auto line = member.socket.take_line()) hear(member, *line);
      update(number);
    }
  }
  /// Steps until the condition holds; false if it does not within the time.
  template <typename Condition>
  bool step_until(const Condition& holds, double seconds = 60) {
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    while (!holds() && Clock::now() < end) step(10);
    return holds();
  }

  /// All workers of the nodes that have started have ended, with exit code 0.
  void finish_round() {
    for (size_t number = 0; number < members_.size(); ++number) {
      Member& member = members_[number];
      if (!member.has_started || !member.socket.is_open()) continue;
      std::vector<launch::WorkerEnd> ends;
      for (int worker = 0; worker < plan_.workers; ++worker) {
        ends.push_back(
            {.rank = member.placement.first_rank + worker, .pid = 1, .status = {}, .host = "crowd"});
      }
      member.socket.send(launch::line_of({{"type", "round_ended"}, {"ends", launch::to_message(ends)}}));
      member.socket.flush();
      update(static_cast<int>(number));
    }
  }

  int started() const { return started_; }
  int finished() const { return finished_; }
  int closed() const { return closed_; }  ///< by the other side
  const std::vector<std::string>& refusals() const { return refusals_; }
  const launch::Verdict& verdict() const { return verdict_; }  ///< the last that a node was told
  Clock::time_point last_start() const { return last_start_; }
  /// What is wrong with the places that the nodes were told; "" if nothing is.
  std::string misplaced() const {
    for (const Member& member : members_) {
      const launch::NodePlacement& place = member.placement;
      if (!member.has_started) continue;
      if (place.node_rank != member.node_rank || place.first_rank != member.node_rank * plan_.workers ||
          place.workers_per_node != plan_.workers || place.nodes != plan_.nodes ||
          place.world_size != plan_.nodes * plan_.workers) {
        return concat("node ", member.node_rank, " was told to be node ", place.node_rank, " of ",
                      place.nodes, ", with ranks from ", place.first_rank, " on of ", place.world_size);
      }
    }
    return "";
  }

 private:
  static constexpr const char* kRun = "crowd";

  struct Member {
    launch::LineSocket socket;
    int node_rank = -1;
    bool congested = true;
    bool has_started = false;
    launch::NodePlacement placement{};  ///< then
    launch::Nonces nonces{};
    launch::Message join{};  ///< without its proof
  };

  static in_addr_t address(uint32_t net, int number) {
    return htonl((uint32_t{127} << 24) + (net << 16) + static_cast<uint32_t>(number));
  }

  Member& add(in_addr_t from, int node_rank, const std::string& line) {
    launch::Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int yes = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    sockaddr_in own{}, host{};
    own.sin_family = host.sin_family = AF_INET;
    own.sin_addr.s_addr = from;
    host.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    host.sin_port = htons(static_cast<uint16_t>(plan_.port));
    if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&own), sizeof(own)) != 0 ||
        (::connect(socket.get(), reinterpret_cast<sockaddr*>(&host), sizeof(host)) != 0 &&
         errno != EINPROGRESS)) {
      throw std::runtime_error("a node of the crowd cannot connect: " + util::errno_text(errno));
    }
    Member& member = members_.emplace_back(
        Member{.socket = launch::LineSocket(std::move(socket)), .node_rank = node_rank});
    member.socket.set_longest_line(1 << 20);
    member.socket.send(line);
    poller_.watch(member.socket.fd(), static_cast<int>(members_.size()) - 1, /*for_sending=*/true);
    return member;
  }

  void update(int number) {
    Member& member = members_[static_cast<size_t>(number)];
    member.socket.flush();
    if (!member.socket.is_open()) {
      ++closed_;
    } else if (member.congested != member.socket.has_unsent()) {
      member.congested = !member.congested;
      poller_.watch(member.socket.fd(), number, member.congested);
    }
  }

  void hear(Member& member, const std::string& line) {
    const launch::Message message = launch::parse_message(line).value();
    const std::string type = message.at("type");
    if (type == "challenge") {
      member.nonces.coordinator = message.at("nonce");
      member.join["proof"] = launch::proof_of_node("", member.nonces);
      member.socket.send(launch::line_of(member.join));
    } else if (type == "start") {
      member.placement = launch::placement_from(message.at("placement"));
      member.has_started = true;
      ++started_;
      last_start_ = Clock::now();
    } else if (type == "finish") {
      verdict_ = launch::verdict_from(message.at("verdict"));
      ++finished_;
    } else if (type == "refuse") {
      refusals_.push_back(message.at("why").get<std::string>());
    }
  }

  const Plan plan_;
  launch::Poller poller_;
  std::deque<Member> members_;
  int started_ = 0, finished_ = 0, closed_ = 0;
  std::vector<std::string> refusals_;
  launch::Verdict verdict_;
  Clock::time_point last_start_{};
};

}  // namespace fsdp::testing
