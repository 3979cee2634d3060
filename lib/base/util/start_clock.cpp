#include "base/util/start_clock.h"

#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

namespace fsdp::util {
namespace {

double seconds_of(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

struct StartRecord {
  std::vector<StartPhase> phases;
  size_t present = 0;
  double since = 0;
  bool is_open = false;

  void account() {
    const double now = monotonic_seconds();
    phases[present].seconds += now - std::exchange(since, now);
  }

  void go_to(const char* name) {
    account();
    const auto found =
        std::find_if(phases.begin(), phases.end(), [&](const StartPhase& p) { return p.name == name; });
    present = static_cast<size_t>(found - phases.begin());
    if (found == phases.end()) phases.push_back({.name = name});
  }
};

thread_local StartRecord record;

}  // namespace

double monotonic_seconds() { return seconds_of(CLOCK_MONOTONIC); }

double process_age_seconds() {
  std::ifstream file("/proc/self/stat");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  // The field follows the program's name, which may contain anything, and 19 other fields.
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  std::string field;
  for (int i = 0; i < 20; ++i) fields >> field;
  const double computed = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
  if (!fields) return computed;
  const auto ticks_per_second = static_cast<double>(::sysconf(_SC_CLK_TCK));
  // The kernel rounds down to a tick.
  const double at_least = seconds_of(CLOCK_BOOTTIME) - (std::stod(field) + 1) / ticks_per_second;
  return std::max(computed, at_least);
}

void begin_start_record(std::vector<StartPhase> so_far, double until) {
  so_far.push_back({.name = "command line and config"});
  record = {.phases = std::move(so_far), .since = until, .is_open = true};
  record.present = record.phases.size() - 1;
}

void start_phase(const char* name) {
  if (record.is_open) record.go_to(name);
}

InnerStartPhase::InnerStartPhase(const char* name) : outer_(record.present) { start_phase(name); }

InnerStartPhase::~InnerStartPhase() {
  if (!record.is_open) return;
  record.account();
  record.present = outer_;
}

void end_start_record() {
  if (record.is_open) record.account();
  record.is_open = false;
}

std::vector<StartPhase> start_record() { return record.phases; }

}  // namespace fsdp::util
