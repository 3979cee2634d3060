#include "tools/report/step_picture.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/util/error.h"
#include "base/util/text.h"
#include "tools/report/axis.h"
#include "tools/report/html.h"
#include "tools/report/style.h"

namespace fsdp::report {

using comm::Slice;
using comm::StepTracks;

namespace {

constexpr double kPictureWidth = 1160, kPictureLeft = 190, kPictureRight = 30;
constexpr double kComputeRow = 26, kLaneRow = 20, kUnitRow = 18, kMemoryHeight = 64, kBetween = 10;
constexpr double kCharacter = 6.4;  ///< largest width of a character of a name in a bar
constexpr size_t kMostRows = 72, kMostName = 28;

struct BarKind {
  const char* css;  ///< class of the style sheet
  const char* says;
};

constexpr BarKind kForward{"forward", "forward"}, kRecompute{"recompute", "forward again"},
    kBackward{"backward", "backward"}, kGather{"gather", "all-gather"}, kReduce{"reduce", "reduce-scatter"},
    kOther{"other", "other collectives"}, kWaited{"waited", "waiting"}, kHeld{"held", "parameters gathered"};

const BarKind& kind_of(const Slice& slice) {
  if (slice.op == "buffer") return kHeld;
  if (slice.op == "all_gather") return kGather;
  if (slice.op == "reduce_scatter") return kReduce;
  if (slice.op != "compute") return kOther;
  if (slice.pass == "recompute") return kRecompute;
  return slice.pass == "backward" ? kBackward : kForward;
}

std::string shown_unit(const std::string& name) {
  if (name.empty()) return "(root)";
  if (name.size() <= kMostName) return name;
  size_t begin = name.size() - kMostName + 3;
  while (begin < name.size() && (static_cast<unsigned char>(name[begin]) & 0xc0) == 0x80) ++begin;
  return "..." + name.substr(begin);
}

std::string in_milliseconds(double us) { return value_text(us / 1000, Scale::kNumber) + " ms"; }

std::string text_at(const char* css, double x, double y, std::string_view text) {
  return concat("<text class=\"", css, "\" x=\"", coordinate(x), "\" y=\"", coordinate(y), "\">",
                escaped(text), "</text>");
}

/// Units in the order of their first collectives. Only the first and the last if there are very many.
std::vector<std::string> rows_of(const StepTracks& tracks) {
  std::vector<std::string> units;
  std::set<std::string> seen;
  for (const Slice& slice : tracks.communication) {
    if (seen.insert(slice.unit).second) units.push_back(slice.unit);
  }
  if (units.size() <= kMostRows) return units;
  units.erase(units.begin() + kMostRows / 2, units.end() - kMostRows / 2);
  return units;
}

int lanes_of(const std::vector<Slice>& slices) {
  int lanes = 0;
  for (const Slice& slice : slices) lanes = std::max(lanes, slice.lane + 1);
  return lanes;
}

class Drawing {
 public:
  Drawing(const StepTracks& tracks, const StepPicture& picture, double begin_us, double end_us)
      : tracks_(tracks),
        picture_(picture),
        begin_us_(begin_us),
        end_us_(end_us),
        time_(0, (end_us - begin_us) / 1000, {kPictureLeft, kPictureWidth - kPictureRight},
              Axis::Ends::kOfTheValues, /*whole=*/false) {}

  std::string svg() {
    if (picture_.stands_alone) {
      texts_ += text_at("title", 12, y_ += 24, picture_.title);
      y_ += 6;
    }
    legend();
    const double top = y_;
    compute();
    lanes("communication", tracks_.communication);
    lanes("waits", tracks_.waits);
    memory();
    units();
    std::string grid;
    for (const double tick : time_.ticks()) {
      const std::string at = coordinate(time_.place(tick));
      grid += concat(
          "<line class=\"grid\" x1=\"", at, "\" x2=\"", at, "\" y1=\"", top, "\" y2=\"", y_, "\"/>",
          text_at("tick middle", time_.place(tick), y_ + 16, time_.tick_text(tick, Scale::kNumber) + " ms"));
    }
    const double height = y_ + 28;
    const std::string size = concat("viewBox=\"0 0 ", kPictureWidth, " ", height, "\"");
    const std::string alone =
        concat(" xmlns=\"http://www.w3.org/2000/svg\" width=\"", kPictureWidth, "\" height=\"", height,
               "\" font-family=\"system-ui, 'DejaVu Sans', sans-serif\"");
    return concat("<svg ", size, picture_.stands_alone ? alone : "", " role=\"img\" aria-label=\"",
                  escaped(picture_.title), "\">",
                  picture_.stands_alone
                      ? concat("<style>", kFigureStyle, "</style><rect class=\"ground\" width=\"100%\" ",
                               "height=\"100%\"/>")
                      : "",
                  grid, bars_, texts_, "</svg>", picture_.stands_alone ? "\n" : "");
  }

 private:
  double place(double us) const {
    return time_.place((std::clamp(us, begin_us_, end_us_) - begin_us_) / 1000);
  }

  void label(double y, const std::string& text, const std::string& whole = "") {
    texts_ +=
        concat("<text class=\"tick end\" x=\"", kPictureLeft - 8, "\" y=\"", coordinate(y), "\">",
               escaped(text), whole.empty() ? "" : concat("<title>", escaped(whole), "</title>"), "</text>");
  }

  /// Draws the legend: the parts of a step with their colours.
  void legend() {
    std::vector<std::pair<std::string, std::string>> entries;  // class of the swatch, text
    std::set<std::string> seen;
    auto add = [&](const std::vector<Slice>& slices, std::optional<BarKind> kind = std::nullopt) {
      for (const Slice& slice : slices) {
        const BarKind& its = kind ? *kind : kind_of(slice);
        if (seen.insert(its.css).second) entries.emplace_back(its.css, its.says);
      }
    };
    add(tracks_.compute);
    add(tracks_.communication);
    add(tracks_.waits, kWaited);
    add(tracks_.held);
    double x = kPictureLeft;
    for (const auto& [css, says] : entries) {
      bars_ += concat("<rect class=\"", css, "\" x=\"", coordinate(x), "\" y=\"", coordinate(y_ + 4),
                      "\" width=\"12\" height=\"12\"/>");
      texts_ += text_at("tick", x + 17, y_ + 14, says);
      x += 17 + kCharacter * 1.1 * static_cast<double>(says.size()) + 18;
    }
    y_ += 28;
  }

  /// Draws a bar, `inset` from the edges of its row at `top`, with the unit's name if there is room for it.
  void bar(const Slice& slice, const char* css, double top, double height, double inset, bool named) {
    const double x = place(slice.begin_us), width = std::max(place(slice.end_us) - x, 0.7);
    std::string says = concat(slice.op == "compute" ? slice.pass : slice.op, " of ", slice.unit);
    if (slice.op != "compute") says += concat(", ", slice.pass, ": ", util::human_bytes(slice.bytes));
    says += concat(" in ", in_milliseconds(slice.end_us - slice.begin_us));
    bars_ += concat("<rect class=\"", css, "\" x=\"", coordinate(x), "\" y=\"", coordinate(top + inset),
                    "\" width=\"", coordinate(width), "\" height=\"", coordinate(height - 2 * inset), "\">",
                    slice.op == "buffer" ? "" : concat("<title>", escaped(says), "</title>"), "</rect>");
    if (!named) return;
    // Shortens "model.layers.3" to "layers.3", but "layers.3" not to "3".
    std::string name = shown_unit(slice.unit);
    if (const size_t dot = name.find('.'); name.find('.', dot + 1) != std::string::npos)
      name.erase(0, dot + 1);
    if (kCharacter * static_cast<double>(name.size()) + 6 <= width) {
      texts_ += text_at("on middle", x + width / 2, top + height / 2 + 4, name);
    }
  }

  void compute() {
    if (tracks_.compute.empty()) return;
    label(y_ + 17, "compute");
    for (size_t i = 0; i < tracks_.compute.size(); ++i) {
      const Slice& slice = tracks_.compute[i];
      const bool outer = i + 1 < tracks_.compute.size() && tracks_.compute[i + 1].begin_us < slice.end_us;
      const std::string css = concat(kind_of(slice).css, outer ? " outer" : "");
      bar(slice, css.c_str(), y_, kComputeRow, outer ? 1 : 4, !outer);
    }
    y_ += kComputeRow + kBetween;
  }

  void lanes(const std::string& name, const std::vector<Slice>& slices) {
    if (slices.empty()) return;
    label(y_ + 14, name);
    const bool waits = &slices == &tracks_.waits;
    for (const Slice& slice : slices) {
      bar(slice, waits ? kWaited.css : kind_of(slice).css, y_ + kLaneRow * slice.lane, kLaneRow,
          waits ? 5 : 1.5, !waits);
    }
    y_ += kLaneRow * lanes_of(slices) + kBetween;
  }

  void memory() {
    double most = 0;
    std::vector<std::pair<double, double>> parameters, all;  // microseconds, bytes
    for (const StepTracks::Live& live : tracks_.live) {
      double sum = 0;
      for (const auto& [kind, bytes] : live.bytes) sum += static_cast<double>(bytes);
      const auto found = live.bytes.find("parameters");
      parameters.emplace_back(live.at_us,
                              found == live.bytes.end() ? 0.0 : static_cast<double>(found->second));
      all.emplace_back(live.at_us, sum);
      most = std::max(most, sum);
    }
    if (most <= 0) return;
    const double bottom = y_ + kMemoryHeight;
    const Axis size(0, most, {bottom, y_}, Axis::Ends::kOfTheValues, /*whole=*/false, binary_unit(most));
    // The value before the first change is unknown, so the line begins at that change.
    auto path = [&](const std::vector<std::pair<double, double>>& changes) {
      std::string d;
      for (const auto& [us, bytes] : changes) {
        d += d.empty() ? concat("M", coordinate(place(us)), " ") : concat("H", coordinate(place(us)), "V");
        d += coordinate(size.place(bytes));
      }
      return d + concat("H", coordinate(place(end_us_)));
    };
    for (const double tick : {0.0, most}) {
      const std::string at = coordinate(size.place(tick));
      bars_ += concat("<line class=\"grid\" x1=\"", kPictureLeft, "\" x2=\"", kPictureWidth - kPictureRight,
                      "\" y1=\"", at, "\" y2=\"", at, "\"/>");
    }
    label(y_ + 10, value_text(most, Scale::kBytes));
    label(bottom + 4, "0");
    const bool more = parameters != all;
    bars_ += concat("<path class=\"held\" d=\"", path(parameters), "V", coordinate(bottom), "H",
                    coordinate(place(parameters.front().first)), "Z\"/>");
    if (more) bars_ += concat("<path class=\"curve c1\" d=\"", path(all), "\"/>");
    bars_ += concat("<path class=\"curve c0\" d=\"", path(parameters), "\"/>");
    label(y_ + 28, more ? "live: parameters (solid)," : "live parameters");
    if (more) label(y_ + 43, "with gradients (dashed)");
    y_ = bottom + kBetween;
  }

  void units() {
    std::map<std::string, double> tops;
    for (const std::string& unit : rows_of(tracks_)) {
      tops[unit] = y_;
      label(y_ + 13, shown_unit(unit), unit);
      y_ += kUnitRow;
    }
    for (const auto* slices : {&tracks_.held, &tracks_.communication, &tracks_.waits}) {
      for (const Slice& slice : *slices) {
        const auto top = tops.find(slice.unit);
        if (top == tops.end()) continue;
        const bool waits = slices == &tracks_.waits;
        bar(slice, waits ? kWaited.css : kind_of(slice).css, top->second, kUnitRow,
            waits                     ? 7.5
            : slices == &tracks_.held ? 1.5
                                      : 3.5,
            false);
      }
    }
    y_ += 2;
  }

  const StepTracks& tracks_;
  const StepPicture& picture_;
  double begin_us_, end_us_;
  Axis time_;
  double y_ = 0;              ///< y coordinate of the next part
  std::string bars_, texts_;  ///< texts are drawn above bars
};

}  // namespace

std::string step_picture(const StepTracks& tracks, const StepPicture& picture) {
  double begin = picture.begin_us, end = picture.end_us;
  if (begin >= end) {
    begin = INFINITY, end = -INFINITY;
    for (const auto* slices : {&tracks.compute, &tracks.communication}) {
      for (const Slice& slice : *slices) {
        begin = std::min(begin, slice.begin_us);
        end = std::max(end, slice.end_us);
      }
    }
  }
  if (tracks.compute.empty() && tracks.communication.empty()) return "";
  return Drawing(tracks, picture, begin, end).svg();
}

}  // namespace fsdp::report
