#pragma once

// HTTP by libcurl, which is loaded when the first request is made, so that programs start without it.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::objects {

struct WebRequest {
  std::string url{};
  bool head = false;              ///< HEAD instead of GET
  bool follows = true;            ///< whether redirections are followed
  std::string bearer{};           ///< token, which is sent to the host of `url` alone
  int64_t first = 0, bytes = -1;  ///< range to ask for; bytes < 0: the whole object
  /// Called with parts of the body of a successful answer. Returns false to end the transfer.
  std::function<bool(const char* data, size_t bytes)> on_body = nullptr;
};

struct WebAnswer {
  int status = 0;
  std::map<std::string, std::string> headers{};  ///< those of the last answer, by names in lower case
  const std::string& header(const std::string& name) const;
};

/// Makes requests over connections that it keeps. Thread-safe.
class WebClient {
 public:
  /// Loads libcurl. Throws Error(kUsage) if it is not installed.
  WebClient();
  ~WebClient();

  /// Throws StoreFault(kTransient) if there is no whole answer. An answer of any status is returned.
  WebAnswer perform(const WebRequest& request);

 private:
  struct Library;
  struct Handles;
  std::unique_ptr<Library> library_;
  std::unique_ptr<Handles> handles_;
};

}  // namespace fsdp::objects
