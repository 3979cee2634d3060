#include <signal.h>
#include <string.h>

#include <charconv>
#include <optional>
#include <sstream>
#include <utility>

#include "launch/node_hardware.h"
#include "launch/options.h"
#include "util/error.h"
#include "util/text.h"

namespace fsdp::launch {
namespace {

using util::ErrorKind;
using util::fail;

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

}  // namespace

int workers_from_text(const std::string& text) {
  const bool automatic = text == "auto";
  if (text == "gpu" || automatic) {
    if (const int gpus = gpu_count()) return gpus;
    if (!automatic) {
      fail(ErrorKind::kUsage,
           "--nproc-per-node gpu starts one process for each GPU, and this node has none; "
           "use --nproc-per-node cpu or a number");
    }
  }
  if (text == "cpu" || automatic) return available_cores();
  const std::optional<int> workers = number<int>(text);
  if (!workers || *workers < 1) {
    fail(ErrorKind::kUsage,
         "expected --nproc-per-node as a whole number from 1, \"cpu\", \"gpu\" or \"auto\", found \"", text,
         "\"");
  }
  return *workers;
}

NodeRange nodes_from_text(const std::string& text) {
  const size_t colon = text.find(':');
  const auto least = number<int>(text.substr(0, colon));
  const auto most = colon == std::string::npos ? least : number<int>(text.substr(colon + 1));
  if (!least || !most || *least < 1 || *most < *least) {
    fail(ErrorKind::kUsage, "expected --nnodes N or MIN:MAX with 1 <= MIN <= MAX, found \"", text, "\"");
  }
  return {*least, *most};
}

StreamChoice streams_from_text(const std::string& option, const std::string& text) {
  StreamChoice choice;
  const auto refuse = [&] {
    fail(ErrorKind::kUsage, "expected ", option,
         " as 0 (neither), 1 (stdout), 2 (stderr) or 3 (both), or as LOCAL_RANK:THAT,..., found \"", text,
         "\"");
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
      fail(ErrorKind::kUsage, "expected ", option, " as local ranks with commas, like 0,1, found \"", text,
           "\"");
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
      fail(ErrorKind::kUsage,
           "expected --signals-to-handle as signals that can be handled, like SIGTERM,SIGINT, found \"", part,
           "\"");
    }
    signals.push_back(found);
  }
  return signals;
}

NumaBinding numa_binding_from_text(const std::string& text) {
  const std::pair<const char*, NumaBinding> known[] = {{"", NumaBinding::kNone},
                                                       {"node", NumaBinding::kNode},
                                                       {"socket", NumaBinding::kSocket},
                                                       {"exclusive", NumaBinding::kExclusive},
                                                       {"core-complex", NumaBinding::kCoreComplex}};
  for (const auto& [name, binding] : known) {
    if (text == name) return binding;
  }
  fail(ErrorKind::kUsage, "expected --numa-binding node, socket, exclusive or core-complex, found \"", text,
       "\"");
}

RendezvousOptions::Backend backend_from_text(const std::string& text) {
  if (text == "static") return RendezvousOptions::Backend::kStatic;
  if (text == "c10d") return RendezvousOptions::Backend::kC10d;
  fail(ErrorKind::kUsage, "expected --rdzv-backend static or c10d, found \"", text, "\"");
}

void read_endpoint(const std::string& text, int default_port, RendezvousOptions& options) {
  if (text.empty()) return;
  const size_t bracket = text.starts_with("[") ? text.find(']') : std::string::npos;
  const size_t colon = text.find(':', bracket == std::string::npos ? 0 : bracket);
  const auto port = colon == std::string::npos ? default_port : number<int>(text.substr(colon + 1));
  const std::string host = bracket == std::string::npos ? text.substr(0, colon) : text.substr(1, bracket - 1);
  if (host.empty() || !port || *port < 0 || *port > 65535) {
    fail(ErrorKind::kUsage, "expected --rdzv-endpoint HOST[:PORT] (an IPv6 address in brackets), found \"",
         text, "\"");
  }
  options.host = host;
  options.port = *port;
}

void read_rendezvous_conf(const std::string& text, RendezvousOptions& options) {
  const auto seconds = [](const std::string& key, const std::string& value) {
    const auto parsed = number<double>(value);
    if (!parsed)
      fail(ErrorKind::kUsage, "expected ", key, " of --rdzv-conf in seconds, found \"", value, "\"");
    return *parsed;
  };
  static const std::vector<std::string> kKeys = {
      "join_timeout",           "timeout", "last_call_timeout", "keep_alive_interval",
      "keep_alive_max_attempt", "is_host", "token_file"};
  for (const std::string& part : split(text, ',')) {
    const size_t equals = part.find('=');
    const std::string key = part.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : part.substr(equals + 1);
    if (key == "join_timeout" || key == "timeout") {
      options.join_timeout_seconds = seconds(key, value);
    } else if (key == "last_call_timeout") {
      options.last_call_timeout_seconds = seconds(key, value);
    } else if (key == "keep_alive_interval") {
      options.keep_alive_interval_seconds = seconds(key, value);
    } else if (key == "keep_alive_max_attempt") {
      options.keep_alive_max_attempt = number<int>(value).value_or(0);
    } else if (key == "is_host") {
      const bool yes = value == "1" || value == "true" || value == "True";
      if (!yes && value != "0" && value != "false" && value != "False") {
        fail(ErrorKind::kUsage, "expected is_host of --rdzv-conf as true or false, found \"", value, "\"");
      }
      options.is_host = yes;
    } else if (key == "token_file") {
      options.token_file = value;
    } else {
      const std::string near = util::nearest(key, kKeys);
      fail(ErrorKind::kUsage, "unknown key \"", key, "\" in --rdzv-conf; expected ",
           near.empty() ? util::join(kKeys, ", ") : near);
    }
  }
}

}  // namespace fsdp::launch
