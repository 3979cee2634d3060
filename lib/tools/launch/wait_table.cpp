#include "tools/launch/wait_table.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/util/error.h"
#include "base/util/text.h"

namespace fsdp::launch {
namespace {

using Ends = std::vector<const WorkerEnd*>;

constexpr size_t kMostSingleRows = 16;  // most workers that get a row each
constexpr size_t kMostRows = 48, kMostRanges = 12, kMostHosts = 3, kMostSentences = 3, kMostWaitedFor = 6;
constexpr const char* kRow = "\n    ";

/// Joins parts and replaces those after `most`: "a, b and 7 more".
void shorten(std::vector<std::string>& parts, size_t most) {
  if (parts.size() <= most) return;
  const size_t left_out = parts.size() - most;
  parts.resize(most);
  parts.push_back(concat(left_out, " more"));
}

/// Text for a list: "a", "a and b", "a, b and 7 more".
std::string listed(std::vector<std::string> parts, size_t most) {
  shorten(parts, most);
  if (parts.size() == 1) return parts[0];
  const std::string last = parts.back();
  parts.pop_back();
  return concat(util::join(parts, ", "), " and ", last);
}

/// Text for ranks, which are ascending: "rank 2", "ranks 0-3, 5 and 7".
std::string names_of_ranks(const std::vector<int>& ranks) {
  std::vector<std::string> ranges;
  for (size_t i = 0, next = 0; i < ranks.size(); i = next) {
    for (next = i + 1; next < ranks.size() && ranks[next] - ranks[next - 1] <= 1;) ++next;
    const bool is_range = next - i > 2;
    ranges.push_back(is_range ? concat(ranks[i], "-", ranks[next - 1]) : std::to_string(ranks[i]));
    if (!is_range) next = i + 1;
  }
  return concat(ranks.size() == 1 ? "rank " : "ranks ", listed(std::move(ranges), kMostRanges));
}

std::string names_of_ranks(const Ends& ends) {
  std::vector<int> ranks;
  for (const WorkerEnd* end : ends) ranks.push_back(end->rank);
  return names_of_ranks(ranks);
}

std::string names_of_hosts(const Ends& ends) {
  std::vector<std::string> hosts;
  for (const WorkerEnd* end : ends) {
    if (std::ranges::find(hosts, end->host) == hosts.end()) hosts.push_back(end->host);
  }
  return listed(std::move(hosts), kMostHosts);
}

std::string place_of_collective(const Standing& standing) {
  return concat(standing.collective, ", ",
                standing.step > 0 ? concat("step ", standing.step) : "before the first step");
}

/// Text for what the worker was doing, without the seconds. Equal for workers at the same place.
std::string place_of(const WorkerEnd& end) {
  const Standing& standing = end.standing;
  if (!standing.is_reported()) return "no report";
  if (standing.is_in_collective()) return concat("in ", place_of_collective(standing));
  if (standing.last_collective.empty()) return standing.doing;
  return concat("computing, step ", standing.step, ", after ", standing.last_collective);
}

/// How the worker ended. "" if that is unknown, or if it only waited too long or was stopped.
std::string ending_worth_telling(const WorkerEnd& end) {
  if (end.pid < 0) return "";
  const bool timed_out = end.status.code() == static_cast<int>(ErrorKind::kTimeout);
  const bool is_cause = kind_of(end) == EndKind::kFailed && !timed_out;
  return is_cause || !end.standing.is_reported() ? ending(end.status) : "";
}

/// The key by which workers share a line.
std::string story_of(const WorkerEnd& end) {
  const std::string how = ending_worth_telling(end);
  return concat(place_of(end), how.empty() ? "" : "; ", how);
}

double seconds_in(const WorkerEnd* end) { return end->standing.seconds; }

std::string seconds_of(const Ends& ends) {
  const auto [least, most] = std::ranges::minmax_element(ends, {}, seconds_in);
  const std::string from = util::fixed((*least)->standing.seconds, 1),
                    to = util::fixed((*most)->standing.seconds, 1);
  return concat(", for ", from == to ? "" : concat(from, " to "), to, " s");
}

/// Workers grouped by `key`, in the order of their lowest ranks.
template <typename Key>
std::vector<Ends> grouped(const Ends& ends, const Key& key) {
  std::map<std::string, size_t> index;
  std::vector<Ends> groups;
  for (const WorkerEnd* end : ends) {
    const auto [found, is_new] = index.emplace(key(*end), groups.size());
    if (is_new) groups.emplace_back();
    groups[found->second].push_back(end);
  }
  return groups;
}

std::string rows(const Ends& ends, const std::vector<SilentNode>& silent) {
  std::vector<std::string> rows;
  if (ends.size() <= kMostSingleRows) {
    for (const WorkerEnd* end : ends) {
      const Standing& standing = end->standing;
      const std::string how = ending_worth_telling(*end);
      rows.push_back(concat(name_of(*end), ": ", standing.is_reported() ? standing.doing : place_of(*end),
                            how.empty() ? "" : "; ", how));
    }
  } else {
    for (const Ends& group : grouped(ends, story_of)) {
      const bool waits = group[0]->standing.is_in_collective();
      const std::string hosts = group[0]->pid < 0 ? "" : concat(" (", names_of_hosts(group), ")");
      rows.push_back(
          concat(names_of_ranks(group), hosts, ": ", story_of(*group[0]), waits ? seconds_of(group) : ""));
    }
  }
  for (const SilentNode& node : silent) {
    rows.push_back(concat("node ", node.node_rank, " (", node.host, "): no report"));
  }
  std::string text;
  for (size_t i = 0; i < std::min(rows.size(), kMostRows); ++i) text += concat(kRow, rows[i]);
  if (rows.size() > kMostRows) text += concat(kRow, "and ", rows.size() - kMostRows, " more places");
  return text;
}

/// The sentences below the rows.
class Waits {
 public:
  Waits(const Ends& ends, const std::vector<SilentNode>& silent) : ends_(ends), silent_(silent) {
    for (const WorkerEnd* end : ends) {
      if (end->standing.is_reported()) are_numbered_ = are_numbered_ && end->standing.collectives >= 0;
    }
  }

  std::string sentences() const {
    Ends waiting;
    std::ranges::copy_if(ends_, std::back_inserter(waiting),
                         [](const WorkerEnd* end) { return end->standing.is_in_collective(); });
    std::vector<Ends> groups =
        grouped(waiting, [this](const WorkerEnd& end) { return concat(number_of(end), " ", place_of(end)); });
    std::stable_sort(groups.begin(), groups.end(), [this](const Ends& a, const Ends& b) {
      return std::tuple(number_of(*a[0]), a.size()) > std::tuple(number_of(*b[0]), b.size());
    });
    // Step numbers do not order the collectives within a step.
    groups.resize(std::min(groups.size(), are_numbered_ ? kMostSentences : 1));
    std::string text;
    for (const Ends& group : groups) text += sentence(group);
    return text;
  }

 private:
  /// The progress of a worker: its number of ended collectives, or its step.
  int64_t number_of(const WorkerEnd& end) const {
    return are_numbered_ ? end.standing.collectives : end.standing.step;
  }

  /// Whether the workers in the collective of `waiting` wait for the worker `end`, which is not in that
  /// collective.
  bool is_behind(const WorkerEnd& end, const WorkerEnd& waiting) const {
    if (!end.standing.is_reported()) return true;
    if (number_of(end) != number_of(waiting)) return number_of(end) < number_of(waiting);
    return are_numbered_ || end.standing.is_in_collective() ||
           end.standing.last_collective != waiting.standing.collective;
  }

  std::string sentence(const Ends& group) const {
    const WorkerEnd& first = *group[0];
    const std::string place = place_of_collective(first.standing);
    Ends behind;
    for (const WorkerEnd* end : ends_) {
      const bool is_member = std::binary_search(group.begin(), group.end(), end);
      if (!is_member && is_behind(*end, first)) behind.push_back(end);
    }
    if (behind.empty() && silent_.empty())
      return group.size() == ends_.size() ? all_are_in(group, place) : "";
    return concat(kRow, names_of_ranks(group), group.size() == 1 ? " waits in " : " wait in ", place,
                  ", for ", waited_for(behind));
  }

  static std::string one_waited_for(const Ends& group) {
    const WorkerEnd& first = *group[0];
    const bool is_one = group.size() == 1;
    std::string doing = is_one ? ", which is " : ", which are ", how = ending_worth_telling(first);
    doing += is_one ? first.standing.doing : place_of(first);
    if (!first.standing.is_reported()) doing = ", which sent no report";
    if (!is_one && how.starts_with("was ")) how.replace(0, 3, "were");
    return concat(names_of_ranks(group), doing, how.empty() ? "" : " and ", how);
  }

  std::string waited_for(const Ends& behind) const {
    std::vector<std::string> parts;
    for (const Ends& group : grouped(behind, story_of)) parts.push_back(one_waited_for(group));
    for (const SilentNode& node : silent_) {
      parts.push_back(concat(node.workers == 1 ? "rank " : "ranks ", node.first_rank,
                             node.workers == 1 ? "" : concat("-", node.first_rank + node.workers - 1),
                             " of node ", node.node_rank, " (", node.host, "), which sent no report"));
    }
    shorten(parts, kMostWaitedFor);
    return util::join(parts, "; for ");
  }

  /// The sentence for a collective in which no rank is missing: a rank came late, or the network does not
  /// transfer the data.
  static std::string all_are_in(const Ends& group, const std::string& place) {
    if (group.size() == 1) return "";
    const auto [last, first] = std::ranges::minmax_element(group, {}, seconds_in);
    const double seconds = (*last)->standing.seconds, most = (*first)->standing.seconds;
    constexpr double kNotable = 1;
    return concat(kRow, "all ", group.size(), " ranks are in ", place,
                  most - seconds < kNotable
                      ? ""
                      : concat("; rank ", (*last)->rank, " for ", util::fixed(seconds, 1), " s only, rank ",
                               (*first)->rank, " for ", util::fixed(most, 1), " s"));
  }

  const Ends& ends_;
  const std::vector<SilentNode>& silent_;
  bool are_numbered_ = true;
};

}  // namespace

std::string wait_table(std::vector<WorkerEnd> ends, const std::vector<SilentNode>& silent) {
  if (std::ranges::none_of(ends, [](const auto& end) { return end.standing.is_reported(); })) return "";
  std::ranges::sort(ends, {}, &WorkerEnd::rank);
  Ends sorted;
  for (const WorkerEnd& end : ends) sorted.push_back(&end);
  return rows(sorted, silent) + Waits(sorted, silent).sentences();
}

}  // namespace fsdp::launch
