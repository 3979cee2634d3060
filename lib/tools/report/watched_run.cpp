#include "tools/report/watched_run.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/util/error.h"
#include "base/util/system.h"
#include "base/util/text.h"
#include "setup/config/load.h"

namespace fsdp::report {
namespace fs = std::filesystem;

namespace {

constexpr double kRestartSeconds = 10;

/// Reads the process's numbers in /proc/PID/stat. False if there is no such process, or only a zombie.
bool read_process(pid_t pid, RankProcess& process, pid_t& parent) {
  std::ifstream file(concat("/proc/", pid, "/stat"));
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');  // the name may contain any character
  if (name_end == std::string::npos) return false;
  std::istringstream fields(text.substr(name_end + 1));
  int64_t skipped = 0, user = 0, system = 0, pages = 0;
  fields >> process.state >> parent;
  for (int field = 5; field < 14; ++field) fields >> skipped;
  fields >> user >> system;
  for (int field = 16; field < 24; ++field) fields >> skipped;
  fields >> pages;
  process.pid = pid;
  process.cpu_ticks = user + system;
  process.resident_bytes = pages * ::sysconf(_SC_PAGE_SIZE);
  return fields && process.state != 'Z' && process.state != 'X';
}

/// The value of RANK in the process's environment. 0 without a launcher.
int64_t rank_of(pid_t pid) {
  std::ifstream file(concat("/proc/", pid, "/environ"), std::ios::binary);
  for (std::string entry; std::getline(file, entry, '\0');) {
    if (entry.starts_with("RANK=")) return std::atoll(entry.c_str() + 5);
  }
  return 0;
}

std::vector<pid_t> all_processes() {
  std::vector<pid_t> pids;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc", ignored)) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid > 0) pids.push_back(pid);
  }
  return pids;
}

/// Whether the process has the file open for writing. False if this user may not see it.
bool writes(pid_t pid, const struct stat& file) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(concat("/proc/", pid, "/fd"), ignored)) {
    struct stat open {
    }, link{};  // the link has the permissions of the descriptor
    if (::stat(entry.path().c_str(), &open) == 0 && open.st_ino == file.st_ino &&
        open.st_dev == file.st_dev && ::lstat(entry.path().c_str(), &link) == 0 &&
        (link.st_mode & S_IWUSR) != 0) {
      return true;
    }
  }
  return false;
}

/// The process that writes the file, which is rank 0. Tries the `known` process first. 0 if no such process
/// can be seen.
pid_t writer_of(const fs::path& path, pid_t known) {
  struct stat file {};
  if (::stat(path.c_str(), &file) != 0) return 0;
  if (known > 0 && writes(known, file)) return known;
  for (const pid_t pid : all_processes()) {
    if (writes(pid, file)) return pid;
  }
  return 0;
}

/// The path of the process's program, if this user may see it.
fs::path program_of(pid_t pid) {
  std::error_code ignored;
  return fs::read_symlink(concat("/proc/", pid, "/exe"), ignored);
}

/// The processes of rank 0's program that the same launcher started, including rank 0.
std::vector<RankProcess> processes_of(pid_t writer) {
  std::vector<RankProcess> found;
  RankProcess first;
  pid_t parent = 0;
  if (writer == 0 || !read_process(writer, first, parent)) return found;
  first.rank = rank_of(writer);
  found.push_back(first);
  const bool launched = std::ifstream(concat("/proc/", writer, "/environ"), std::ios::binary) && parent > 1;
  for (const pid_t pid : launched ? all_processes() : std::vector<pid_t>{}) {
    RankProcess other;
    pid_t its_parent = 0;
    if (pid == writer || !read_process(pid, other, its_parent) || its_parent != parent ||
        program_of(pid) != program_of(writer))
      continue;
    other.rank = rank_of(pid);
    if (other.rank > 0) found.push_back(other);
  }
  std::sort(found.begin(), found.end(),
            [](const RankProcess& a, const RankProcess& b) { return a.rank < b.rank; });
  return found;
}

}  // namespace

int64_t WatchedState::step() const {
  const auto& losses = run.values("loss");
  return losses.empty() ? 0 : static_cast<int64_t>(losses.back().x);
}

std::string status_of(const WatchedState& state) {
  if (!state.has_metrics) return "waiting for metrics.jsonl";
  if (!state.ranks.empty()) return "running";
  if (state.total_steps > 0 && state.step() >= state.total_steps) return "finished";
  if (!state.is_here) return concat("on ", state.host, "; its processes are not visible from here");
  return "no process on this host that is visible to this user";
}

WatchedRun::WatchedRun(fs::path folder)
    : tail_(folder / "metrics.jsonl"), processes_seen_(Clock::now()), last_look_(processes_seen_) {
  state_.run.folder = std::move(folder);
}

const WatchedState& WatchedRun::poll(Clock::time_point now) {
  const auto restart = [this] {
    const int64_t step = state_.step();
    state_.run.series.clear();
    state_.events.clear();
    checkpoints_.clear();
    skipped_ = 0;
    add_event(0, concat("the file was started again, after step ", step));
  };
  state_.has_metrics = tail_.poll(restart, [this](const std::string& line) { add_line(line); });
  if (!state_.has_metrics) return state_;
  if (state_.world_size == 0 || state_.total_steps == 0) read_settings();
  find_checkpoints();
  find_processes(now);
  struct stat file {};
  if (::stat((state_.run.folder / "metrics.jsonl").c_str(), &file) == 0) {
    state_.seconds_since_line = std::max(0.0, std::difftime(std::time(nullptr), file.st_mtime));
  }
  const bool may_see = state_.is_here && (::geteuid() == 0 || ::geteuid() == file.st_uid);
  const bool all_steps = state_.total_steps > 0 && state_.step() >= state_.total_steps;
  const double gone = std::chrono::duration<double>(now - processes_seen_).count();
  state_.ended =
      state_.ranks.empty() &&
      (all_steps || (may_see && gone > kRestartSeconds && state_.seconds_since_line > kRestartSeconds));
  return state_;
}

void WatchedRun::add_event(int64_t step, std::string text) {
  const auto after = std::upper_bound(state_.events.begin(), state_.events.end(), step,
                                      [](int64_t at, const RunEvent& event) { return at < event.step; });
  state_.events.insert(after, {step, std::move(text)});
}

void WatchedRun::add_line(const std::string& line) {
  RunRecord one;
  if (!add_metrics(line, one)) {
    ++state_.run.skipped_lines;
    return;
  }
  for (auto& [name, points] : one.series) {
    auto& all = state_.run.series[name];
    const double step = points.front().x;
    if (!all.empty() && all.back().x >= step) {
      if (name == "loss") add_event(static_cast<int64_t>(step), concat("went back to step ", step));
      std::erase_if(all, [step](const CurvePoint& point) { return point.x >= step; });
    }
    all.push_back(points.front());
  }
  for (const auto& [rank, host] : one.slow_hosts) state_.run.slow_hosts[rank] = host;
  if (const auto& losses = one.values("validation_loss"); !losses.empty()) {
    const auto& all = state_.run.values("validation_loss");
    const bool best = all.size() == 1 || losses.front().y < best_validation_;
    if (best) best_validation_ = losses.front().y;
    add_event(static_cast<int64_t>(losses.front().x),
              concat("validation loss ", util::fixed(losses.front().y, 4), best ? ", the best so far" : ""));
  }
  if (const auto& skipped = one.values("skipped_steps"); !skipped.empty()) {
    if (skipped.front().y > skipped_) {
      add_event(static_cast<int64_t>(skipped.front().x),
                concat(skipped.front().y - skipped_, " updates skipped since the line before"));
    }
    skipped_ = skipped.front().y;
  }
}

void WatchedRun::read_settings() {
  const fs::path& folder = state_.run.folder;
  try {
    const config::Config config = config::load_resolved_config(folder / "config.toml");
    state_.total_steps = config.training.epochs > 0 ? 0 : config.training.steps;
  } catch (const util::Error&) {  // a config of a plug-in or of another version
  }
  state_.run.environment.clear();
  read_environment(state_.run);
  for (const auto& [name, value] : state_.run.environment) {
    if (name == "ranks") state_.world_size = std::atoll(value.c_str());
    if (name == "host") state_.host = util::printable(value);
  }
  state_.is_here = state_.host == util::host_name();
}

void WatchedRun::find_checkpoints() {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(state_.run.folder, ignored)) {
    const std::string name = entry.path().filename().string();
    int64_t step = 0;
    int length = 0;
    if (std::sscanf(name.c_str(), "step-%18ld%n", &step, &length) != 1 ||
        static_cast<size_t>(length) != name.size())
      continue;
    if (checkpoints_.contains(name) || !fs::exists(entry.path() / "manifest.json", ignored)) continue;
    checkpoints_.insert(name);
    add_event(step, concat("saved ", name));
  }
}

void WatchedRun::find_processes(Clock::time_point now) {
  const pid_t known = state_.ranks.empty() ? 0 : state_.ranks.front().pid;
  std::vector<RankProcess> found = processes_of(writer_of(state_.run.folder / "metrics.jsonl", known));
  const double seconds = std::chrono::duration<double>(now - last_look_).count();
  for (RankProcess& process : found) {
    for (const RankProcess& before : state_.ranks) {
      if (before.pid != process.pid || seconds <= 0) continue;
      process.cpu_share = static_cast<double>(process.cpu_ticks - before.cpu_ticks) /
                          static_cast<double>(::sysconf(_SC_CLK_TCK)) / seconds;
    }
  }
  last_look_ = now;
  if (!found.empty()) processes_seen_ = now;
  state_.ranks = std::move(found);
}

}  // namespace fsdp::report
