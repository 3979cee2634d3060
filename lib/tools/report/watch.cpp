#include "tools/report/watch.h"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/util/error.h"
#include "tools/report/watch_view.h"

namespace fsdp::report {
namespace {

constexpr int kRefreshMs = 1000;
constexpr int kSnapshotColumns = 100, kSnapshotLines = 24;

volatile sig_atomic_t g_stop = 0;

void write_out(std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(STDOUT_FILENO, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(ErrorKind::kIo, "cannot write to the standard output: ", util::errno_text(errno));
    text.remove_prefix(static_cast<size_t>(count));
  }
}

/// Shows the terminal's alternate screen, without cursor and echo, during its lifetime. Signals that end the
/// program set g_stop.
class Screen {
 public:
  Screen() {
    g_stop = 0;
    struct sigaction action {};
    action.sa_handler = [](int signal) { g_stop = signal; };
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(signal, &action, nullptr);
    action.sa_handler = [](int) {};  // interrupts the wait, so that the new size is drawn
    ::sigaction(SIGWINCH, &action, nullptr);
    has_keys_ = ::tcgetattr(STDIN_FILENO, &before_) == 0;
    if (has_keys_) {
      termios now = before_;
      now.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
      now.c_cc[VSUSP] = _POSIX_VDISABLE;  // a stopped program would leave the terminal in this state
      ::tcsetattr(STDIN_FILENO, TCSANOW, &now);
    }
    write_out("\033[?1049h\033[?25l");
  }
  ~Screen() {
    constexpr std::string_view kBack = "\033[?25h\033[?1049l";
    [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, kBack.data(), kBack.size());
    if (has_keys_) ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  void draw(const WatchedState& state) const {
    winsize size{};
    const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0;
    const int columns = known ? size.ws_col : 80, rows = known ? size.ws_row : 24;
    std::string text = "\033[H";
    for (const std::string& line : watch_view(state, columns, rows - 1)) text += line + "\033[K\r\n";
    write_out(text + "\033[J\033[" + std::to_string(rows) + ";1Hq quits");
  }

  /// Waits until the next redraw is due. Returns whether the user wants to quit.
  bool quits() const {
    pollfd keys{has_keys_ ? STDIN_FILENO : -1, POLLIN, 0};
    if (::poll(&keys, 1, kRefreshMs) > 0) {
      char key = 0;
      if (::read(STDIN_FILENO, &key, 1) <= 0) return true;  // the terminal is gone
      if (key == 'q' || key == 'Q') return true;
    }
    return g_stop != 0;
  }

 private:
  termios before_{};
  bool has_keys_ = false;
};

}  // namespace

std::string watch_json(const std::filesystem::path& folder) {
  using nlohmann::ordered_json;
  WatchedRun run(folder);
  const WatchedState& state = run.poll();
  if (!state.has_metrics) require_metrics(folder);
  ordered_json last = ordered_json::object(), ranks = ordered_json::array(), events = ordered_json::array();
  for (const auto& [name, points] : state.run.series) {
    const auto step = static_cast<int64_t>(std::clamp(points.back().x, 0.0, 9e15));
    last[name] = {{"step", step}, {"value", points.back().y}};
  }
  for (const RankProcess& rank : state.ranks) {
    ranks.push_back({{"rank", rank.rank},
                     {"pid", rank.pid},
                     {"state", std::string(1, rank.state)},
                     {"resident_bytes", rank.resident_bytes}});
  }
  for (const RunEvent& event : state.events) events.push_back({{"step", event.step}, {"text", event.text}});
  const ordered_json json = {{"folder", folder.string()},
                             {"status", status_of(state)},
                             {"is_running", !state.ranks.empty()},
                             {"ended", state.ended},
                             {"step", state.step()},
                             {"total_steps", state.total_steps},
                             {"world_size", state.world_size},
                             {"host", state.host},
                             {"seconds_since_line", state.seconds_since_line},
                             {"last_values", std::move(last)},
                             {"ranks", std::move(ranks)},
                             {"events", std::move(events)}};
  return json.dump(2, ' ', true, ordered_json::error_handler_t::replace) + "\n";
}

void watch(const std::filesystem::path& folder) {
  WatchedRun run(folder);
  if (::isatty(STDOUT_FILENO) == 0) {
    const WatchedState& state = run.poll();
    if (!state.has_metrics) require_metrics(folder);
    std::string text;
    for (const std::string& line : watch_view(state, kSnapshotColumns, kSnapshotLines)) text += line + "\n";
    return write_out(text);
  }
  const WatchedState* state = &run.poll();
  {
    const Screen screen;
    do {
      state = &run.poll();
      screen.draw(*state);
    } while (!state->ended && !screen.quits());
  }
  write_out(last_line(*state) + "\n");
}

}  // namespace fsdp::report
