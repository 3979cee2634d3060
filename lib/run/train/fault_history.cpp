#include "run/train/fault_history.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/json.h"
#include "base/util/text.h"
#include "tools/plan/text.h"

namespace fsdp::train {
namespace fs = std::filesystem;

namespace {

constexpr const char* kStartsName = "starts.json";
constexpr uintmax_t kLargestBytes = 4096;
constexpr double kMost = 1e9;  ///< seconds or faults of a history
constexpr double kDay = 24 * 3600;
constexpr double kRankSecondsOfAFault = 54 * kDay * 16384 / 419;

/// Text for an interval, which may be shorter than a second where each step is saved.
std::string interval_text(double seconds) {
  return seconds < 60 ? plan::duration(seconds) : util::human_duration(seconds);
}

}  // namespace

FaultHistory::FaultHistory(fs::path folder, bool begins) : path_(std::move(folder) / kStartsName) {
  try {
    std::error_code error;
    if (fs::file_size(path_, error) <= kLargestBytes && !error) {
      const nlohmann::json found = util::parse_json(util::read_file(path_), {.deepest_level = 2});
      const bool was_running = found.at("running").get<bool>();
      const auto faults = found.at("faults").get<double>(), seconds = found.at("seconds").get<double>();
      faults_ = static_cast<int64_t>(std::clamp(faults, 0.0, kMost));
      seconds_before_ = std::clamp(seconds, 0.0, kMost);
      is_running_ = was_running;
    }
  } catch (const std::exception&) {
    // Not the file of a run: the history begins here.
  }
  if (begins && is_running_) ++faults_;
  is_running_ = true;
  write();
}

FaultHistory::~FaultHistory() { last_.wait(); }

void FaultHistory::note(double seconds_of_start) {
  seconds_of_start_ = seconds_of_start;
  write();
}

void FaultHistory::end(double seconds_of_start) {
  is_running_ = false;
  note(seconds_of_start);
  last_.wait();
}

void FaultHistory::write() {
  const nlohmann::json record = {{"faults", faults_}, {"seconds", seconds()}, {"running", is_running_}};
  last_ = writer_.add([path = path_, text = record.dump() + "\n"] {
    try {
      util::write_file_atomically(path, text);
    } catch (const util::Error&) {
      // Saves report what is wrong with the folder.
    }
  });
}

double assumed_seconds_of_a_fault(int64_t ranks) {
  return std::min(kDay, kRankSecondsOfAFault / static_cast<double>(ranks));
}

simulate::Faults expected_faults(const FaultHistory& history, int64_t ranks, double save_seconds) {
  const double mean =
      (history.seconds() + assumed_seconds_of_a_fault(ranks)) / static_cast<double>(history.faults() + 1);
  return {.mean_seconds = mean, .checkpoint_seconds = std::max(save_seconds, 1e-3)};
}

std::string cost_text(const FaultHistory& history, double save_seconds) {
  const int64_t faults = history.faults();
  return concat("a save delays training by ", util::fixed(save_seconds, 2), " s, and the run has failed ",
                faults, faults == 1 ? " time in " : " times in ", util::human_duration(history.seconds()));
}

std::string advice_text(const FaultHistory& history, const simulate::Faults& faults, double interval_seconds,
                        double step_seconds) {
  constexpr double kWorthwhile = 0.01;
  const double best = simulate::best_interval(faults, step_seconds);
  const double loss = 1 - simulate::effective_share(faults, interval_seconds),
               least = 1 - simulate::effective_share(faults, best);
  if (loss - least < kWorthwhile) return "";
  return concat(cost_text(history, faults.checkpoint_seconds), ": a save every ", interval_text(best),
                " would lose least, ", util::fixed(100 * least, 1),
                " % of the time by Daly's estimate; every ", interval_text(interval_seconds),
                ", as now, loses ", util::fixed(100 * loss, 1),
                " %; checkpoint.schedule = \"auto\" chooses the interval");
}

}  // namespace fsdp::train
