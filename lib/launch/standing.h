#pragma once

// Where a worker stood when the run did not go on, as it wrote it down itself (train/watchdog.h).

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace fsdp::launch {

struct Standing {
  std::string doing{};            ///< a phrase: "in all_gather of root (forward), step 3, for 5.0 s"
  std::string collective{};       ///< in progress: "all_gather of root (forward)"; empty: it computes
  std::string last_collective{};  ///< the one that ended last; empty: none has
  int64_t step = 0;               ///< 0: before the first
  int64_t collectives = -1;       ///< ended so far; -1: unknown
  double seconds = 0;             ///< since the collective began, or since the last one ended

  bool is_said() const { return !doing.empty(); }
  bool is_in_collective() const { return is_said() && !collective.empty(); }
};

/// From a report or a message. Whoever wrote it: texts are cut and brought to one line that a terminal can
/// show, and what has not the right type is as if it were absent.
Standing standing_from(const nlohmann::json& report);

nlohmann::json to_json(const Standing& standing);

/// `text` as one printable line of not many more than `most_bytes`; "..." stands for what is cut off.
std::string one_line(std::string_view text, size_t most_bytes);

}  // namespace fsdp::launch
