#pragma once

// A line of a file of requests or of a task: a JSON object whose members are taken one by one.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace fsdp::generate {

/// All functions but has() throw Error(kUsage): PLACE: expected EXPECTED, with or without an "id"; found ...
class RequestLine {
 public:
  /// place: "requests.jsonl, line 7"; expected: what the line should be
  RequestLine(std::string place, const std::string& text, const char* expected);

  bool has(const char* key) const { return object_.contains(key); }
  /// Members that were taken are no longer there. Each may be missing.
  std::optional<nlohmann::json> take(const char* key);
  std::optional<std::string> text(const char* key);
  /// One text or a list of them, none of which is empty.
  std::vector<std::string> texts(const char* key);
  /// A number from `least` on.
  std::optional<int64_t> count(const char* key, int64_t least = 1);
  /// Refuses what was not taken.
  void finish() const;
  [[noreturn]] void refuse(const std::string& found) const;

 private:
  std::string place_;
  const char* expected_;
  nlohmann::json object_;
};

}  // namespace fsdp::generate
