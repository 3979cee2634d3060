#pragma once

// Collects everything that is wrong with a configuration, so that the user hears it at once.

#include <optional>
#include <string>
#include <vector>

#include "config/source.h"

namespace fsdp::config {

class Report {
 public:
  /// `message` says what was expected and what was found; the report adds the place and shows the line.
  void add(const Source& source, const std::optional<Region>& region, const std::string& message);
  bool empty() const { return problems_.empty(); }
  /// Throws util::Error(kUsage) with every problem; no effect if there is none.
  void throw_if_any() const;

 private:
  std::vector<std::string> problems_;
};

}  // namespace fsdp::config
