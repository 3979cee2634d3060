#include "shard/units/schedule_text.h"

#include <algorithm>
#include <utility>

#include "base/util/error.h"
#include "shard/units/nominal_pass.h"

namespace fsdp::shard {
namespace {

std::string text_of(const Command& command, const UnitSizes& unit) {
  using Action = Command::Action;
  // Nothing is gathered where the shard is the whole unit.
  const bool is_gathered = unit.unsharded_bytes() > 0;
  switch (command.kind) {
    case Action::kGatherSlices:
      return "gather " + unit.name + " between slices";
    case Action::kWaitForSlices:
      return "wait for " + unit.name + " between slices";
    case Action::kGather:
      return is_gathered ? (unit.is_cut() ? "gather " : "cast ") + unit.name : "";
    case Action::kWaitForGather:
      return is_gathered ? "wait for " + unit.name : "";
    case Action::kReshard:
      return is_gathered ? "reshard " + unit.name : "";
    case Action::kAttachGradients:
      return "attach gradients of " + unit.name;
    case Action::kReduce:
      return "reduce " + unit.name;
    case Action::kReduceInSlice:
      return "reduce " + unit.name + " in the slice";
    case Action::kWaitForSending:
      return "wait until " + unit.name + " is sent";
    case Action::kWaitForMove:
      return "wait until " + unit.name +
             (unit.has_slices() ? " is reduced between slices" : " is on the host");
    case Action::kWaitForReduction:
      return "wait until " + unit.name + " is reduced";
    case Action::kHandOver:  // has no effect unless the engine has a gradient use
      return "";
  }
  return "";
}

/// Writes down the events of a pass with their commands.
class Writer final : public CommandReader {
 public:
  struct Line {
    size_t unit = 0;
    std::string event, commands;
  };

  explicit Writer(const std::vector<UnitSizes>& units) : units_(units) {}

  void note(const NominalPass::StageEvent& event, Pass pass) {
    const bool is_end_of_all = pass == Pass::kBackward && event.unit == 0 && !event.begins;
    lines_.push_back(
        {event.unit,
         concat(pass == Pass::kForward ? "forward" : "backward",
                is_end_of_all ? "" : " of " + units_[event.unit].name, event.begins ? " begins" : " ends"),
         ""});
  }
  void read(const Command& command) override {
    if (lines_.empty()) return;  // of the pass that makes the order known
    const std::string text = text_of(command, units_[command.unit]);
    std::string& commands = lines_.back().commands;
    if (!text.empty()) commands += (commands.empty() ? "" : ", ") + text;
  }
  const std::vector<Line>& lines() const { return lines_; }

 private:
  const std::vector<UnitSizes>& units_;
  std::vector<Line> lines_;
};

}  // namespace

std::string schedule_text(const std::vector<UnitSizes>& units, const ShardOptions& options,
                          size_t most_units) {
  Writer writer(units);
  Schedule schedule(options, scheduled_units(units), writer);
  const NominalPass pass(units);
  pass.run(schedule);
  schedule.forget_gradients();
  pass.run(schedule, [&](const NominalPass::StageEvent& event, Pass which) { writer.note(event, which); });

  const auto roots = static_cast<size_t>(
      std::count_if(units.begin(), units.end(), [](const UnitSizes& unit) { return unit.is_root; }));
  size_t hidden_begin = 0, hidden_end = 0;
  if (most_units > 0 && units.size() - roots > most_units) {
    hidden_begin = roots + (most_units + 1) / 2;
    hidden_end = units.size() - most_units / 2;
  }
  size_t width = 0;
  for (const Writer::Line& line : writer.lines()) width = std::max(width, line.event.size());
  std::string text;
  bool in_gap = false;
  for (const Writer::Line& line : writer.lines()) {
    const bool is_hidden = hidden_begin <= line.unit && line.unit < hidden_end;
    if (!std::exchange(in_gap, is_hidden) && is_hidden) {
      text += concat("... ", hidden_end - hidden_begin, " more units\n");
    }
    if (is_hidden || line.commands.empty()) continue;
    text += concat(line.event, std::string(width + 2 - line.event.size(), ' '), line.commands, "\n");
  }
  return text;
}

}  // namespace fsdp::shard
