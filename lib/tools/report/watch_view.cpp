#include "tools/report/watch_view.h"

#include <algorithm>
#include <cmath>

#include "base/util/error.h"
#include "base/util/text.h"
#include "tools/report/axis.h"

namespace fsdp::report {

namespace {

constexpr int kLeastCurve = 4, kMostEvents = 5, kGutter = 9;  // lines, lines, characters
constexpr size_t kMostProcesses = 8;                          ///< most processes shown one by one

size_t characters(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::string cut(const std::string& text, int width) {
  size_t end = 0, count = 0;
  while (end < text.size()) {
    if ((static_cast<unsigned char>(text[end]) & 0xc0) != 0x80 &&
        count++ == static_cast<size_t>(std::max(width, 0)))
      break;
    ++end;
  }
  return text.substr(0, end);
}

/// A character of Unicode's basic plane above U+07FF, as UTF-8.
std::string utf8(unsigned code) {
  return {static_cast<char>(0xe0 | (code >> 12)), static_cast<char>(0x80 | ((code >> 6) & 0x3f)),
          static_cast<char>(0x80 | (code & 0x3f))};
}

/// Joins as many parts into each line as fit.
std::vector<std::string> wrapped(const std::vector<std::string>& parts, int width) {
  std::vector<std::string> lines;
  for (const std::string& part : parts) {
    if (!lines.empty() && characters(lines.back()) + 3 + characters(part) <= static_cast<size_t>(width)) {
      lines.back() += "   " + part;
    } else {
      lines.push_back(part);
    }
  }
  return lines;
}

std::string rate(double value) { return util::printed("%.3g", value); }

std::optional<double> last_value(const RunRecord& run, const char* name) {
  const auto& points = run.values(name);
  return points.empty() ? std::nullopt : std::optional(points.back().y);
}

std::string progress(const WatchedState& state, int width) {
  if (state.total_steps == 0) return concat("step ", util::with_commas(state.step()));
  const double share =
      std::clamp(static_cast<double>(state.step()) / static_cast<double>(state.total_steps), 0.0, 1.0);
  std::string head =
      concat("step ", util::with_commas(state.step()), "/", util::with_commas(state.total_steps), " ");
  std::string tail = concat(" ", util::fixed(100 * share, 0), "%");
  auto eta = last_value(state.run, "eta_seconds");
  if (const auto seconds = last_value(state.run, "step_seconds"); seconds && !eta) {  // of an older version
    eta = *seconds * static_cast<double>(state.total_steps - state.step());
  }
  if (eta && state.step() < state.total_steps) tail += concat("   ETA ", util::human_duration(*eta));
  const int room = std::min(60, width - static_cast<int>(head.size() + tail.size()));
  if (room < 8) return head + tail;
  const int filled = static_cast<int>(share * room);
  for (int i = 0; i < room; ++i) head += i < filled ? "█" : "░";
  return head + tail;
}

std::vector<std::string> numbers(const WatchedState& state) {
  const RunRecord& run = state.run;
  std::vector<std::string> parts;
  auto add = [&](const char* name, const auto& text) {
    if (const auto value = last_value(run, name)) parts.push_back(text(*value));
  };
  add("loss", [](double value) { return concat("loss ", util::fixed(value, 4)); });
  if (const auto& losses = run.values("validation_loss"); !losses.empty()) {
    parts.push_back(concat("validation ", util::fixed(losses.back().y, 4), " at step ",
                           static_cast<int64_t>(losses.back().x)));
  }
  add("tokens_per_second",
      [](double value) { return concat(util::with_commas(std::llround(value)), " tokens/s"); });
  add("step_seconds", [](double value) { return concat(rate(value), " s/step"); });
  add("grad_norm", [](double value) { return concat("norm ", util::fixed(value, 2)); });
  add("lr", [](double value) { return concat("lr ", rate(value)); });
  const bool gpu = !run.values("gpu_peak_reserved_bytes").empty();
  add(gpu ? "gpu_peak_reserved_bytes" : "peak_memory_bytes",
      [](double value) { return concat("peak ", value_text(value, Scale::kBytes)); });
  add("mfu", [](double value) { return concat("mfu ", util::fixed(100 * value, 1), "%"); });
  if (last_value(run, "hfu") != last_value(run, "mfu")) {
    add("hfu", [](double value) { return concat("hfu ", util::fixed(100 * value, 1), "%"); });
  }
  add("loss_scale", [](double value) { return concat("scale ", value); });
  add("skipped_steps", [](double value) { return concat("skipped ", value); });
  if (const auto& slow = run.values("slow_rank"); !slow.empty() && slow.back().x == state.step()) {
    parts.push_back(concat("slow: ", run.slow_rank_name(slow.back().y)));
    add("slow_rank_factor",
        [](double value) { return concat(util::fixed(value, 2), " times the others' time"); });
  }
  return parts;
}

std::string since_line(const WatchedState& state) {
  if (state.ended || state.step() == 0) return "";
  std::string text = concat(", last line ", util::human_duration(state.seconds_since_line), " ago");
  const auto& losses = state.run.values("loss");
  const auto seconds = last_value(state.run, "step_seconds");
  if (losses.size() < 2 || !seconds || state.ranks.empty()) return text;
  const double usual = *seconds * (losses.back().x - losses[losses.size() - 2].x);
  if (state.seconds_since_line < 10 || state.seconds_since_line < 5 * usual) return text;
  return concat(text, " (usually one in ", util::human_duration(usual), ")");
}

/// Lines on the processes: CPU and memory of each or, if there are many, the lowest and the highest values.
std::vector<std::string> processes(const WatchedState& state, int width) {
  if (state.ranks.empty()) return {};
  auto cpu = [](double share) { return share < 0 ? std::string("-") : util::fixed(100 * share, 0) + "%"; };
  const std::string others =
      state.world_size > static_cast<int64_t>(state.ranks.size())
          ? concat(" (", state.ranks.size(), " of ", state.world_size, " ranks are on this host)")
          : "";
  if (state.ranks.size() <= kMostProcesses) {
    std::vector<std::string> parts;
    for (const RankProcess& process : state.ranks) {
      parts.push_back(concat("rank ", process.rank, " ", cpu(process.cpu_share), " CPU ",
                             util::human_bytes(process.resident_bytes),
                             process.state == 'T' ? " STOPPED" : ""));
    }
    parts.back() += others;
    return wrapped(parts, width);
  }
  const auto [idle, busy] =
      std::minmax_element(state.ranks.begin(), state.ranks.end(),
                          [](const auto& a, const auto& b) { return a.cpu_share < b.cpu_share; });
  const auto [small, large] =
      std::minmax_element(state.ranks.begin(), state.ranks.end(),
                          [](const auto& a, const auto& b) { return a.resident_bytes < b.resident_bytes; });
  return {cut(concat("ranks: CPU ", cpu(idle->cpu_share), " (rank ", idle->rank, ") to ",
                     cpu(busy->cpu_share), ", memory ", util::human_bytes(small->resident_bytes), " to ",
                     util::human_bytes(large->resident_bytes), others),
              width)};
}

std::vector<std::string> curve(const RunRecord& run, int width, int height) {
  const auto& losses = run.values("loss");
  const int columns = width - kGutter - 1;
  if (losses.size() < 2 || columns < 10 || height < kLeastCurve) return {};
  const auto& marks = run.values("validation_loss");
  double low = INFINITY, high = -INFINITY;
  for (const auto* points : {&losses, &marks}) {
    for (const CurvePoint& point : *points) low = std::min(low, point.y), high = std::max(high, point.y);
  }
  std::vector<std::string> lines = braille_curve(losses, marks, columns, height - 1);
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string label = i == 0                  ? util::fixed(high, 3)
                              : i + 1 == lines.size() ? util::fixed(low, 3)
                                                      : "";
    const std::string gutter =
        label.size() >= kGutter ? "" : std::string(kGutter - 1 - label.size(), ' ') + label;
    lines[i] = concat(gutter, " │", lines[i]);
  }
  const std::string from = util::with_commas(static_cast<int64_t>(losses.front().x)),
                    to = util::with_commas(static_cast<int64_t>(losses.back().x));
  const std::string what = marks.empty() ? "loss by step" : "loss by step, o validation";
  const int room = columns - static_cast<int>(from.size() + to.size() + what.size());
  if (room < 2) return lines;
  const auto left = static_cast<size_t>(room / 2);
  lines.push_back(concat(std::string(kGutter + 1, ' '), from, std::string(left, ' '), what,
                         std::string(static_cast<size_t>(room) - left, ' '), to));
  return lines;
}

}  // namespace

std::vector<std::string> braille_curve(const std::vector<CurvePoint>& points,
                                       const std::vector<CurvePoint>& marks, int width, int height) {
  double x_low = INFINITY, x_high = -INFINITY, y_low = INFINITY, y_high = -INFINITY;
  for (const auto* set : {&points, &marks}) {
    for (const CurvePoint& point : *set) {
      x_low = std::min(x_low, point.x), x_high = std::max(x_high, point.x);
      y_low = std::min(y_low, point.y), y_high = std::max(y_high, point.y);
    }
  }
  const int right = 2 * width - 1, bottom = 4 * height - 1;
  auto dot = [](double value, double low, double high, int last) {
    const double share = high > low ? (value - low) / (high - low) : 0.5;
    return std::clamp(static_cast<int>(std::lround(share * last)), 0, last);
  };
  auto column = [&](const CurvePoint& point) { return dot(point.x, x_low, x_high, right); };
  auto row = [&](const CurvePoint& point) { return bottom - dot(point.y, y_low, y_high, bottom); };
  std::vector<unsigned> cells(static_cast<size_t>(width * height), 0);
  auto cell = [&](int x, int y) -> unsigned& { return cells[static_cast<size_t>(y / 4 * width + x / 2)]; };
  auto set = [&](int x, int y) {
    static constexpr unsigned kBits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    cell(x, y) |= kBits[y % 4][x % 2];
  };
  for (size_t i = 0; i < points.size(); ++i) {
    const CurvePoint& from = points[i == 0 ? 0 : i - 1];
    const int x0 = column(from), y0 = row(from), dx = column(points[i]) - x0, dy = row(points[i]) - y0;
    const int dots = std::max({std::abs(dx), std::abs(dy), 1});
    for (int n = 0; n <= dots; ++n) {
      set(x0 + static_cast<int>(std::lround(double(dx) * n / dots)),
          y0 + static_cast<int>(std::lround(double(dy) * n / dots)));
    }
  }
  constexpr unsigned kMark = 0x100;
  for (const CurvePoint& mark : marks) cell(column(mark), row(mark)) = kMark;
  std::vector<std::string> lines;
  for (int y = 0; y < height; ++y) {
    lines.emplace_back();
    for (int x = 0; x < width; ++x) {
      const unsigned bits = cells[static_cast<size_t>(y * width + x)];
      lines.back() += bits == kMark ? "o" : bits == 0 ? " " : utf8(0x2800 + bits);
    }
  }
  return lines;
}

std::string last_line(const WatchedState& state) {
  std::string text = concat(util::printable(state.run.folder.string()), ": ", status_of(state));
  if (!state.has_metrics) return text;
  text += concat(", step ", util::with_commas(state.step()));
  if (state.total_steps > 0) text += concat(" of ", util::with_commas(state.total_steps));
  if (const auto loss = last_value(state.run, "loss")) text += concat(", loss ", util::fixed(*loss, 4));
  if (const auto loss = last_value(state.run, "validation_loss")) {
    text += concat(", validation loss ", util::fixed(*loss, 4));
  }
  return text;
}

std::vector<std::string> watch_view(const WatchedState& state, int width, int height) {
  std::vector<std::string> lines = {
      concat(util::printable(state.run.folder.string()), ": ", status_of(state), since_line(state))};
  std::vector<std::string> below;
  if (state.has_metrics) {
    lines.push_back(progress(state, width));
    for (std::string& line : wrapped(numbers(state), width)) lines.push_back(std::move(line));
    below = processes(state, width);
    const size_t first = state.events.size() - std::min<size_t>(state.events.size(), kMostEvents);
    for (size_t i = first; i < state.events.size(); ++i) {
      below.push_back(concat("step ", state.events[i].step, ": ", state.events[i].text));
    }
    // The newest events come last. They are left out in favour of a curve.
    const int room = height - static_cast<int>(lines.size()) - kLeastCurve - 1;
    if (static_cast<int>(below.size()) > std::max(room, 0)) {
      below.erase(below.begin(), below.end() - std::max(room, 0));
    }
    for (std::string& line :
         curve(state.run, width, height - static_cast<int>(lines.size() + below.size()))) {
      lines.push_back(std::move(line));
    }
  }
  for (std::string& line : below) lines.push_back(std::move(line));
  if (static_cast<int>(lines.size()) > height) lines.resize(static_cast<size_t>(std::max(height, 0)));
  for (std::string& line : lines) line = cut(line, width);
  return lines;
}

}  // namespace fsdp::report
