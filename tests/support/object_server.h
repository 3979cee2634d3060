#pragma once

// Starts tests/support/object_server.py and makes requests of its control.

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/objects/web_client.h"
#include "support/run_program.h"
#include "support/source_folder.h"

namespace fsdp::testing {

/// A store of objects that lives as long as this object. Its buckets are the folders of `files`.
class ObjectServer {
 public:
  explicit ObjectServer(const std::string& files = "")
      : server_(arguments(files), {.env = {}, .timeout_seconds = 1800}) {
    if (!server_.wait_for("serves\n")) throw std::runtime_error("the server of objects: " + server_.err());
    port_ = std::stoi(server_.out().substr(5));
  }

  std::string address() const { return "http://localhost:" + std::to_string(port_); }
  std::string web(const std::string& path) const { return address() + "/web/" + path; }

  /// The environment in which names of stores lead to this server.
  std::map<std::string, std::optional<std::string>> environment(const std::string& cache) const {
    return {{"AWS_ENDPOINT_URL", address()},
            {"AWS_ACCESS_KEY_ID", "key"},
            {"AWS_SECRET_ACCESS_KEY", "secret"},
            {"AWS_EC2_METADATA_DISABLED", "true"},
            {"HF_ENDPOINT", address()},
            {"HF_TOKEN", "hf_good"},
            {"FSDP_CACHE_DIR", cache}};
  }

  /// Changes how the server answers, and resets its counts.
  void set(const nlohmann::json& control) const { ask("?set=" + in_address(control.dump())); }
  /// Counts since the last set().
  nlohmann::json counts() const { return ask(""); }

 private:
  static std::vector<std::string> arguments(const std::string& files) {
    std::vector<std::string> arguments{"python3", source_folder() + "/tests/support/object_server.py"};
    if (!files.empty()) arguments.insert(arguments.end(), {"--files", files});
    return arguments;
  }
  static std::string in_address(const std::string& text) {
    std::string escaped;
    char digits[4];
    for (const char c : text) {
      std::snprintf(digits, sizeof(digits), "%%%02x", static_cast<unsigned char>(c));
      escaped += digits;
    }
    return escaped;
  }
  nlohmann::json ask(const std::string& query) const {
    std::string body;
    objects::WebClient().perform(
        {.url = address() + "/_control" + query, .on_body = [&](const char* data, size_t bytes) {
           body.append(data, bytes);
           return true;
         }});
    return nlohmann::json::parse(body);
  }

  RunningProgram server_;
  int port_ = 0;
};

}  // namespace fsdp::testing
