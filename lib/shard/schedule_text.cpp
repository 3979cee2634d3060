#include "shard/schedule_text.h"

#include <algorithm>
#include <utility>

#include "shard/nominal_pass.h"
#include "util/error.h"

namespace fsdp::shard {
namespace {

using util::concat;

std::string text_of(const Command& command, const UnitSizes& unit) {
  using Kind = Command::Kind;
  // Where the shard is the whole unit, nothing is gathered.
  const bool is_gathered = unit.unsharded_bytes() > 0;
  switch (command.kind) {
    case Kind::kGather:
      return is_gathered ? (unit.is_cut() ? "gather " : "cast ") + unit.name : "";
    case Kind::kWaitForGather:
      return is_gathered ? "wait for " + unit.name : "";
    case Kind::kReshard:
      return is_gathered ? "reshard " + unit.name : "";
    case Kind::kAttachGradients:
      return "attach gradients of " + unit.name;
    case Kind::kReduce:
      return "reduce " + unit.name;
    case Kind::kWaitForSending:
      return "wait until " + unit.name + " is sent";
    case Kind::kWaitForMove:
      return "wait until " + unit.name + " is on the host";
    case Kind::kWaitForReduction:
      return "wait until " + unit.name + " is reduced";
    // Where nothing has asked for a gradient, none is handed over.
    case Kind::kHandOver:
      return "";
  }
  return "";
}

/// Which units have lines of their own.
struct LeftOut {
  size_t begin = 0, end = 0;  ///< none, if equal
  bool has(size_t unit) const { return begin <= unit && unit < end; }
};

LeftOut left_out(const std::vector<UnitSizes>& units, size_t most_units) {
  const auto roots = static_cast<size_t>(
      std::count_if(units.begin(), units.end(), [](const UnitSizes& unit) { return unit.is_root; }));
  if (most_units == 0 || units.size() - roots <= most_units) return {};
  return {roots + (most_units + 1) / 2, units.size() - most_units / 2};
}

/// Collects the commands of an event.
class Line final : public CommandReader {
 public:
  explicit Line(const std::vector<UnitSizes>& units) : units_(units) {}

  void read(const Command& command) override {
    const std::string text = text_of(command, units_[command.unit]);
    if (!text.empty()) commands_ += (commands_.empty() ? "" : ", ") + text;
  }
  /// What has been collected.
  std::string take() { return std::exchange(commands_, {}); }

 private:
  const std::vector<UnitSizes>& units_;
  std::string commands_;
};

}  // namespace

std::string schedule_text(const std::vector<UnitSizes>& units, const ShardOptions& options,
                          size_t most_units) {
  Line line(units);
  Schedule schedule(options, scheduled_units(units), line);
  const NominalPass pass(units);
  pass.run(schedule);
  line.take();

  struct Entry {
    std::string event, commands;
    bool is_left_out = false;
  };
  std::vector<Entry> entries;
  const LeftOut hidden = left_out(units, most_units);
  const auto end_line = [&] {
    if (!entries.empty()) entries.back().commands = line.take();
  };
  pass.run(schedule, [&](const NominalPass::Event& event, Pass which) {
    end_line();
    const bool is_end_of_all = which == Pass::kBackward && event.unit == 0 && !event.begins;
    entries.push_back(
        {concat(which == Pass::kForward ? "forward" : "backward",
                is_end_of_all ? "" : " of " + units[event.unit].name, event.begins ? " begins" : " ends"),
         "", hidden.has(event.unit)});
  });
  end_line();

  size_t width = 0;
  for (const Entry& entry : entries) width = std::max(width, entry.event.size());
  std::string text;
  bool in_gap = false;
  for (const Entry& entry : entries) {
    if (!std::exchange(in_gap, entry.is_left_out) && entry.is_left_out) {
      text += concat("... ", hidden.end - hidden.begin, " more units\n");
    }
    if (entry.is_left_out || entry.commands.empty()) continue;
    text += concat(entry.event, std::string(width + 2 - entry.event.size(), ' '), entry.commands, "\n");
  }
  return text;
}

}  // namespace fsdp::shard
