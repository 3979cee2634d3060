#include "tools/launch/verdict.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/util/error.h"
#include "base/util/text.h"
#include "tools/launch/signals.h"

namespace fsdp::launch {
namespace {

constexpr size_t kLongestPhraseBytes = 400, kLongestCollectiveBytes = 200;

std::string text_at(const nlohmann::json& report, const char* name, size_t most_bytes) {
  const auto found = report.find(name);
  if (found == report.end() || !found->is_string()) return "";
  return one_line(found->get_ref<const std::string&>(), most_bytes);
}

int64_t count_at(const nlohmann::json& report, const char* name, int64_t otherwise) {
  const auto found = report.find(name);
  if (found == report.end() || !found->is_number_integer()) return otherwise;
  const auto count = found->get<int64_t>();
  return count < 0 ? otherwise : count;
}

double seconds_at(const nlohmann::json& report, const char* name) {
  const auto found = report.find(name);
  if (found == report.end() || !found->is_number()) return 0;
  const auto seconds = found->get<double>();
  return std::isfinite(seconds) ? std::max(0.0, seconds) : 0;
}

}  // namespace

std::string one_line(std::string_view text, size_t most_bytes) {
  size_t end = text.size();
  if (end > most_bytes) {
    end = most_bytes;
    const auto continues = [&](size_t at) { return (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80; };
    constexpr size_t kLongestCharacterBytes = 4;
    while (end > 0 && most_bytes - end < kLongestCharacterBytes && continues(end)) --end;
  }
  std::string line(text.substr(0, end));
  std::replace_if(
      line.begin(), line.end(), [](char c) { return c == '\n' || c == '\t'; }, ' ');
  return util::printable(line) + (end < text.size() ? "..." : "");
}

Standing standing_from(const nlohmann::json& report) {
  if (!report.is_object()) return {};
  return {.doing = text_at(report, "doing", kLongestPhraseBytes),
          .collective = text_at(report, "collective", kLongestCollectiveBytes),
          .last_collective = text_at(report, "last_collective", kLongestCollectiveBytes),
          .step = count_at(report, "step", 0),
          .collectives = count_at(report, "collectives", -1),
          .seconds = seconds_at(report, "seconds")};
}

nlohmann::json to_json(const Standing& standing) {
  return {{"doing", standing.doing},
          {"collective", standing.collective},
          {"last_collective", standing.last_collective},
          {"step", standing.step},
          {"collectives", standing.collectives},
          {"seconds", standing.seconds}};
}

bool was_preempted(const WorkerEnd& end) {
  return end.status.code() == util::kExitPreempted && !end.told_after_failure;
}

EndKind kind_of(const WorkerEnd& end) {
  const int code = end.status.code();
  if (code == 0 || was_preempted(end)) return EndKind::kFinished;
  if (code == util::kExitPreempted) return EndKind::kStopped;
  // A shell around the real worker reports the signal as an exit code.
  if (end.stop_signals_sent.contains(code - 128)) return EndKind::kStopped;
  if (code == static_cast<int>(ErrorKind::kPeerLost)) return EndKind::kPeerLost;
  return EndKind::kFailed;
}

Verdict judge(const std::vector<WorkerEnd>& ends) {
  const auto order = [](const WorkerEnd& end) { return std::tuple(kind_of(end), end.round, end.rank); };
  const auto first = std::ranges::min_element(ends, {}, order);
  if (first == ends.end()) return {};
  const bool preempted = std::ranges::any_of(ends, was_preempted);
  const bool explained = preempted && kind_of(*first) == EndKind::kPeerLost;
  if (kind_of(*first) != EndKind::kFinished && !explained) {
    return {.exit_code = first->status.code(), .culprit = *first};
  }
  return {.exit_code = preempted ? util::kExitPreempted : 0};
}

bool may_end_differently(const Verdict& verdict) {
  if (!verdict.culprit || kind_of(*verdict.culprit) != EndKind::kFailed) return true;
  const ExitStatus& status = verdict.culprit->status;
  return status.signal != 0 || (status.exit_code != static_cast<int>(ErrorKind::kUsage) &&
                                status.exit_code != static_cast<int>(ErrorKind::kDiverged));
}

std::string ending(const ExitStatus& status) {
  if (status.signal == 0) return concat("ended with exit code ", status.exit_code);
  return concat("was ended by ", signal_name(status.signal));
}

std::string name_of(const WorkerEnd& end) {
  if (end.pid < 0) return concat("rank ", end.rank);
  return concat("rank ", end.rank, " (pid ", end.pid, end.host.empty() ? "" : " on ", end.host, ")");
}

}  // namespace fsdp::launch
