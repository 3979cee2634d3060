#include "tools/launch/options.h"

#include <string.h>

#include <charconv>
#include <cmath>
#include <sstream>

#include "base/util/error.h"
#include "base/util/text.h"
#include "tools/launch/node_hardware.h"

namespace fsdp::launch {
namespace {

template <typename... Parts>
[[noreturn]] void refuse_option(const Parts&... parts) {
  fail(ErrorKind::kUsage, parts...);
}

template <typename Number>
std::optional<Number> number(const std::string& text) {
  Number value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

std::optional<int> streams(const std::string& text) {
  const std::optional<int> value = number<int>(text);
  if (!value || *value < 0 || *value > 3) return std::nullopt;
  return value;
}

void check_seconds(const char* option, double seconds, double least) {
  constexpr double kLongestSeconds = 1e6;
  if (std::isfinite(seconds) && seconds >= least && seconds <= kLongestSeconds) return;
  refuse_option(option, " must be from ", least, " to 1000000 seconds, but is ", seconds);
}

void check_port(const char* option, int port) {
  if (port >= 0 && port <= 65535) return;
  refuse_option(option, " must be from 1 to 65535, or 0 for a free port, but is ", port);
}

void check_local_ranks(const char* option, const std::set<int>& ranks, int workers) {
  if (ranks.empty() || (*ranks.begin() >= 0 && *ranks.rbegin() < workers)) return;
  const int wrong = *ranks.begin() < 0 ? *ranks.begin() : *ranks.rbegin();
  refuse_option(option, " must list local ranks from 0 to ", workers - 1, " with --nproc-per-node ", workers,
                ", but has ", wrong);
}

std::set<int> ranks_of(const StreamChoice& choice) {
  std::set<int> ranks;
  for (const auto& [rank, streams] : choice.of_local_rank) ranks.insert(rank);
  return ranks;
}

void check_nodes(const LaunchOptions& options) {
  const auto& [least, most] = options.nnodes;
  if (least < 1 || most < least) {
    refuse_option("--nnodes must be N or MIN:MAX with 1 <= MIN <= MAX, but is ", least, ":", most);
  }
  const RendezvousOptions& rendezvous = options.rendezvous;
  if (options.node_rank < 0 || options.node_rank >= most) {
    refuse_option("--node-rank must be from 0 to ", most - 1, " with --nnodes ", most, ", but is ",
                  options.node_rank);
  }
  if (!options.is_multi_node()) return;
  if (rendezvous.is_static() && least != most) {
    refuse_option("--nnodes ", least, ":", most,
                  " lets nodes come and go, which --rdzv-backend static does not support; use "
                  "--rdzv-backend c10d");
  }
  if (rendezvous.host.empty()) {
    refuse_option("--nnodes ", most,
                  " with --rdzv-backend c10d requires --rdzv-endpoint HOST[:PORT], the address of the "
                  "node where all nodes meet");
  }
  if (rendezvous.port < 1 || rendezvous.port > 65535) {
    refuse_option("the port of ", rendezvous.is_static() ? "--master-port" : "--rdzv-endpoint",
                  " must be from 1 to 65535 with --nnodes ", most,
                  ", because all nodes must know it in advance, but is ", rendezvous.port);
  }
}

void check_replicas(const LaunchOptions& options) {
  if (options.replica_size < 0) {
    refuse_option("--replica-size must be at least 1, or 0 for a run without replicas, but is ",
                  options.replica_size);
  }
  if (options.min_replicas < 1) {
    refuse_option("--min-replicas must be at least 1, but is ", options.min_replicas);
  }
  if (!options.has_replicas()) {
    const bool has_time = options.stop_timeout_seconds != LaunchOptions().stop_timeout_seconds;
    const char* needless = options.min_replicas != 1 ? "--min-replicas"
                           : has_time                ? "--stop-timeout"
                                                     : nullptr;
    if (needless) refuse_option(needless, " has no effect without --replica-size; add that or leave it out");
    return;
  }
  const auto& [least, most] = options.nnodes;
  if (least != most) {
    refuse_option(
        "--replica-size requires --nnodes N, the nodes of the whole run, whose places stay open while "
        "they are lost, but --nnodes is ",
        least, ":", most);
  }
  if (!options.is_multi_node() && options.master_port != 0) {
    refuse_option(
        "--master-port names one port, but with --replica-size each change of the replicas uses another "
        "one; leave it out");
  }
  const int workers = options.nproc_per_node * most;
  if (!options.is_multi_node() && workers % options.replica_size != 0) {
    refuse_option("--nproc-per-node must be a multiple of --replica-size, which is ", options.replica_size,
                  ", but is ", workers);
  }
  if (!options.is_multi_node() && options.min_replicas > workers / options.replica_size) {
    refuse_option("--min-replicas must be at most ", workers / options.replica_size,
                  ", the replicas of the run, but is ", options.min_replicas);
  }
}

}  // namespace

int workers_from_text(const std::string& text) {
  const bool automatic = text == "auto";
  if (text == "gpu" || automatic) {
    if (const int gpus = gpu_count()) return gpus;
    if (!automatic) {
      refuse_option(
          "--nproc-per-node gpu starts one process for each GPU, but this node has none; use "
          "--nproc-per-node cpu or a number");
    }
  }
  if (text == "cpu" || automatic) return available_cores();
  const std::optional<int> workers = number<int>(text);
  if (!workers || *workers < 1) {
    refuse_option(
        "--nproc-per-node must be a whole number of at least 1, \"cpu\", \"gpu\" or "
        "\"auto\", but is \"",
        text, "\"");
  }
  return *workers;
}

NodeRange nodes_from_text(const std::string& text) {
  const size_t colon = text.find(':');
  const auto least = number<int>(text.substr(0, colon));
  const auto most = colon == std::string::npos ? least : number<int>(text.substr(colon + 1));
  if (!least || !most || *least < 1 || *most < *least) {
    refuse_option("--nnodes must be N or MIN:MAX with 1 <= MIN <= MAX, but is \"", text, "\"");
  }
  return {*least, *most};
}

StreamChoice streams_from_text(const std::string& option, const std::string& text) {
  StreamChoice choice;
  const auto refuse = [&] {
    refuse_option(option,
                  " must be 0 (neither), 1 (stdout), 2 (stderr) or 3 (both), or "
                  "LOCAL_RANK:STREAMS,..., but is \"",
                  text, "\"");
  };
  if (const auto all = streams(text)) {
    choice.of_all = *all;
    return choice;
  }
  for (const std::string& part : split(text, ',')) {
    const size_t colon = part.find(':');
    const auto rank = number<int>(part.substr(0, colon));
    const auto value = colon == std::string::npos ? std::nullopt : streams(part.substr(colon + 1));
    if (!rank || !value) refuse();
    choice.of_local_rank[*rank] = *value;
  }
  if (choice.of_local_rank.empty()) refuse();
  return choice;
}

std::set<int> ranks_from_text(const std::string& option, const std::string& text) {
  std::set<int> ranks;
  for (const std::string& part : split(text, ',')) {
    const auto rank = number<int>(part);
    if (!rank) {
      refuse_option(option, " must be local ranks separated by commas, such as 0,1, but is \"", text, "\"");
    }
    ranks.insert(*rank);
  }
  return ranks;
}

std::vector<int> signals_from_text(const std::string& text) {
  std::vector<int> signals;
  for (const std::string& part : split(text, ',')) {
    const std::string name = part.starts_with("SIG") ? part.substr(3) : part;
    int found = 0;
    for (int signal = 1; signal < 32 && !found; ++signal) {
      const char* known = sigabbrev_np(signal);
      if (known && name == known) found = signal;
    }
    if (!found || found == SIGKILL || found == SIGSTOP || found == SIGCHLD) {
      refuse_option(
          "--signals-to-handle must be signals that can be handled, such as SIGTERM,SIGINT, but has \"", part,
          "\"");
    }
    signals.push_back(found);
  }
  return signals;
}

NumaBinding numa_binding_from_text(const std::string& text) {
  using enum NumaBinding;
  static const std::map<std::string, NumaBinding> kBindings = {{"", kNone},
                                                               {"node", kNode},
                                                               {"socket", kSocket},
                                                               {"exclusive", kExclusive},
                                                               {"core-complex", kCoreComplex}};
  if (const auto found = kBindings.find(text); found != kBindings.end()) return found->second;
  refuse_option("--numa-binding must be node, socket, exclusive or core-complex, but is \"", text, "\"");
}

RendezvousKind backend_from_text(const std::string& text) {
  if (text == "static") return RendezvousKind::kStatic;
  if (text == "c10d") return RendezvousKind::kC10d;
  refuse_option("--rdzv-backend must be static or c10d, but is \"", text, "\"");
}

void read_endpoint(const std::string& text, int default_port, RendezvousOptions& options) {
  if (text.empty()) return;
  const size_t bracket = text.starts_with("[") ? text.find(']') : std::string::npos;
  const size_t colon = text.find(':', bracket == std::string::npos ? 0 : bracket);
  const auto port = colon == std::string::npos ? default_port : number<int>(text.substr(colon + 1));
  const std::string host = bracket == std::string::npos ? text.substr(0, colon) : text.substr(1, bracket - 1);
  if (host.empty() || !port || *port < 0 || *port > 65535) {
    refuse_option("--rdzv-endpoint must be HOST[:PORT] (an IPv6 address in brackets), but is \"", text, "\"");
  }
  options.host = host;
  options.port = *port;
}

void read_rendezvous_conf(const std::string& text, RendezvousOptions& options) {
  static const std::map<std::string, double RendezvousOptions::*> kSeconds = {
      {"join_timeout", &RendezvousOptions::join_timeout_seconds},
      {"timeout", &RendezvousOptions::join_timeout_seconds},
      {"last_call_timeout", &RendezvousOptions::last_call_timeout_seconds},
      {"keep_alive_interval", &RendezvousOptions::keep_alive_interval_seconds}};
  static const std::vector<std::string> kKeys = {
      "join_timeout",           "timeout", "last_call_timeout", "keep_alive_interval",
      "keep_alive_max_attempt", "is_host", "token_file",        "trust_network"};
  for (const std::string& part : split(text, ',')) {
    const size_t equals = part.find('=');
    const std::string key = part.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : part.substr(equals + 1);
    if (const auto member = kSeconds.find(key); member != kSeconds.end()) {
      const auto seconds = number<double>(value);
      if (!seconds) refuse_option(key, " of --rdzv-conf must be in seconds, but is \"", value, "\"");
      options.*member->second = *seconds;
    } else if (key == "keep_alive_max_attempt") {
      options.keep_alive_max_attempt = number<int>(value).value_or(0);
    } else if (key == "is_host" || key == "trust_network") {
      const bool yes = value == "1" || value == "true" || value == "True";
      if (!yes && value != "0" && value != "false" && value != "False") {
        refuse_option(key, " of --rdzv-conf must be true or false, but is \"", value, "\"");
      }
      if (key == "is_host") options.is_host = yes;
      if (key == "trust_network") options.trust_network = yes;
    } else if (key == "token_file") {
      options.token_file = value;
    } else {
      const std::string near = util::nearest(key, kKeys);
      refuse_option("unknown key \"", key, "\" in --rdzv-conf; expected ",
                    near.empty() ? util::join(kKeys, ", ") : near);
    }
  }
}

int StreamChoice::of(int local_rank) const {
  const auto own = of_local_rank.find(local_rank);
  return own == of_local_rank.end() ? of_all : own->second;
}

void check_program(const std::vector<std::string>& program) {
  if (!program.empty() && !program.front().empty()) return;
  refuse_option(
      "there is no program to start; write it after the options, as in fsdp-launch "
      "--nproc-per-node 2 -- PROGRAM ARGUMENTS");
}

void validate(const LaunchOptions& options) {
  const int workers = options.nproc_per_node;
  if (workers < 1) refuse_option("--nproc-per-node must be at least 1, but is ", workers);
  check_nodes(options);
  if (options.master_addr.empty()) {
    refuse_option("--master-addr must be a host name or address, but is empty");
  }
  check_port("--master-port", options.master_port);
  if (options.max_restarts < 0) {
    refuse_option("--max-restarts must be at least 0, but is ", options.max_restarts);
  }
  check_replicas(options);
  check_seconds("--stop-timeout", options.stop_timeout_seconds, 0);
  constexpr double kShortestIntervalSeconds = 0.001;
  check_seconds("--monitor-interval", options.monitor_interval_seconds, kShortestIntervalSeconds);
  check_seconds("--shutdown-timeout", options.shutdown_timeout_seconds, 0);
  check_seconds("join_timeout of --rdzv-conf", options.rendezvous.join_timeout_seconds, 0);
  check_seconds("last_call_timeout of --rdzv-conf", options.rendezvous.last_call_timeout_seconds, 0);
  check_seconds("keep_alive_interval of --rdzv-conf", options.rendezvous.keep_alive_interval_seconds, 0);
  if (options.rendezvous.keep_alive_max_attempt < 1) {
    refuse_option("keep_alive_max_attempt of --rdzv-conf must be at least 1, but is ",
                  options.rendezvous.keep_alive_max_attempt);
  }
  check_local_ranks("--local-ranks-filter", options.local_ranks_filter, workers);
  check_local_ranks("--redirects", ranks_of(options.redirects), workers);
  check_local_ranks("--tee", ranks_of(options.tee), workers);
  check_program(options.program);
}

}  // namespace fsdp::launch
