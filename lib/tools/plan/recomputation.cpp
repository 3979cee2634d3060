#include "tools/plan/recomputation.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "base/util/error.h"
#include "base/util/text.h"
#include "model/nn/decoder.h"
#include "model/nn/recompute.h"

namespace fsdp::plan {
namespace {

using Shares = std::vector<RecordedPass::StageShare>;

/// Savings and costs of recomputing one operation in one stage.
struct Item {
  size_t stage = 0, operation = 0;
  int64_t bytes = 0;
  double flops = 0;
};

/// A choice.
struct Way {
  std::vector<Item> items = {};
  std::set<size_t> whole = {};   ///< stages that are recomputed whole
  std::set<size_t> moved = {};   ///< stages of which all that they save goes to host memory
  std::set<size_t> inputs = {};  ///< stages in `whole` of which the input does
  int64_t patience = 1;          ///< stages during which that is copied
  int64_t on_way = 0;            ///< bytes of such stages that are on the device at once
  int64_t on_host = 0;           ///< bytes of all that is moved
  int64_t surplus = 0;           ///< kept bytes beyond the budget
  double seconds = 0;            ///< what it costs in a micro-batch

  bool is_better_than(const Way& other) const {
    const bool fits = surplus <= 0, other_fits = other.surplus <= 0;
    if (fits != other_fits) return fits;
    return !fits && surplus != other.surplus ? surplus < other.surplus : seconds < other.seconds;
  }
};

class RecomputationChooser {
 public:
  RecomputationChooser(const config::Config& config, const MachineSpeed& speed, PassDevice device)
      : config_(config),
        speed_(speed),
        device_(device),
        offloads_(config.activation_checkpointing.mode == nn::RecomputeMode::kOffload &&
                  is_for_gpu(config, device)) {
    const nn::CheckpointingOptions& options = config.activation_checkpointing;
    const auto model = nn::make_decoder(config.model, at::kMeta);
    nn::check_recomputed_types(*model, options.stage_types);
    for (const auto& [path, stage] : nn::outermost_stages(*model, options.stage_types)) {
      stages_.push_back(path);
      recomputable_.push_back(stage->recomputable());
      for (const std::string& operation : recomputable_.back()) {
        if (std::ranges::count(operations_, operation) == 0) operations_.push_back(operation);
      }
    }
  }

  Recomputation choose() {
    const RecordedPass none = recorded({.mode = nn::RecomputeMode::kNone}),
                       full = recorded({.mode = nn::RecomputeMode::kFull,
                                        .stage_types = config_.activation_checkpointing.stage_types});
    Recomputation result{.options = config_.activation_checkpointing,
                         .offloads = offloads_,
                         .most = none.saved_bytes(),
                         .least = least(full),
                         .flops = none.flops()};
    const double share = config_.activation_checkpointing.memory_budget;
    const auto surplus = static_cast<int64_t>((1 - share) * static_cast<double>(result.most - result.least));
    Way way;
    if (surplus > 0) {
      none_ = none.shares(stages_);
      full_ = full.shares(stages_);
      way = share > 0 || config_.mesh.model > 1 ? way_within(surplus, result) : least_way();
    }
    take(way, result);
    result.recomputed_flops = flops_ - none.flops();
    return result;
  }

 private:
  RecordedPass recorded(nn::CheckpointingOptions options) const {
    config::Config config = config_;
    config.activation_checkpointing = std::move(options);
    return record_pass(config, device_);
  }

  nn::CheckpointingOptions with(std::vector<nn::StageRecomputation> chosen) const {
    nn::CheckpointingOptions options = config_.activation_checkpointing;
    options.chosen = std::move(chosen);
    return options;
  }

  /// Records the pass of a choice.
  void take(const Way& way, Recomputation& result) {
    result.options.chosen = chosen(way);
    result.options.offload_patience = way.patience;
    const RecordedPass pass = recorded(result.options);
    result.kept = pass.saved_bytes();
    flops_ = pass.flops();
  }

  /// Operations that need the same tensors save less together than each alone, so a choice that keeps too
  /// much is made again for a smaller budget.
  Way way_within(int64_t surplus, Recomputation& result) {
    constexpr int kTrials = 4;
    const int64_t target = result.most - surplus;
    measure();
    Way way;
    for (int trial = 0; trial < kTrials; ++trial) {
      way = fastest(surplus);
      if (way.surplus > 0 && config_.mesh.model > 1) refuse(way, result);
      take(way, result);
      if (result.kept <= target) return way;
      surplus += result.kept - target;
    }
    return config_.mesh.model > 1 ? way : least_way();
  }

  /// Recomputes all stages, with their inputs in host memory if that may be.
  Way least_way() const {
    Way way;
    for (size_t stage = 0; stage < stages_.size(); ++stage) {
      way.whole.insert(stage);
      if (!moves_input(stage) || !fits_host(way, full_[stage].saved_bytes)) continue;
      way.inputs.insert(stage);
      way.on_host += full_[stage].saved_bytes;
    }
    return way;
  }

  /// The last stage's backward comes next, so nothing of it needs to move.
  bool is_last(size_t stage) const { return stage + 1 == stages_.size(); }

  int64_t least(const RecordedPass& full) const {
    if (!offloads_) return full.saved_bytes();
    std::vector<nn::StageRecomputation> all;
    for (size_t stage = 0; stage < stages_.size(); ++stage) {
      all.push_back({.path = stages_[stage], .whole = true, .offload = !is_last(stage)});
    }
    return recorded(with(std::move(all))).saved_bytes();
  }

  /// Records a pass for each operation, which all stages recompute.
  void measure() {
    for (size_t operation = 0; operation < operations_.size(); ++operation) {
      std::vector<nn::StageRecomputation> chosen;
      for (const std::string& path : stages_) {
        chosen.push_back({.path = path, .operations = {operations_[operation]}});
      }
      const Shares shares = recorded(with(std::move(chosen))).shares(stages_);
      for (size_t stage = 0; stage < stages_.size(); ++stage) {
        const Item item{stage, operation, none_[stage].saved_bytes - shares[stage].saved_bytes,
                        shares[stage].backward_flops - none_[stage].backward_flops};
        if (item.bytes > 0) items_.push_back(item);
      }
    }
    const auto order = [](const Item& item) {
      // The larger item comes first among equals: fewer and larger products are faster.
      return std::tuple(item.flops / static_cast<double>(item.bytes), -item.bytes, item.operation,
                        item.stage);
    };
    std::ranges::sort(items_, {}, order);
  }

  Way fastest(int64_t surplus) const {
    Way best = way_with(0, surplus);
    for (size_t spacing = 1; offloads_ && spacing < stages_.size(); ++spacing) {
      Way way = way_with(spacing, surplus);
      if (way.is_better_than(best)) best = std::move(way);
    }
    return best;
  }

  /// Moves every `spacing`th stage, as far as the budget needs it (0: none), and recomputes of the others
  /// what it still needs.
  Way way_with(size_t spacing, int64_t surplus) const {
    Way way{.surplus = surplus};
    for (size_t stage = 0; spacing > 0 && !is_last(stage) && way.surplus > 0; stage += spacing) {
      if (stage >= stages_.size() || !fits_host(way, none_[stage].saved_bytes)) break;
      move(stage, spacing, way);
    }
    take_items(way);
    if (way.surplus > 0 && config_.mesh.model <= 1) take_stages(way);
    return way;
  }

  void move(size_t stage, size_t spacing, Way& way) const {
    way.moved.insert(stage);
    way.surplus -= none_[stage].saved_bytes;
    const double copy = static_cast<double>(none_[stage].saved_bytes) / speed_.host_bytes_per_second;
    double forward = 0, backward = 0;
    int64_t patience = 0;
    for (size_t next = stage + 1; next <= stage + spacing && next < stages_.size(); ++next) {
      if (forward < copy) ++patience;
      forward += seconds(none_[next].forward_flops);
      backward += seconds(none_[next].backward_flops);
    }
    way.patience = std::max(way.patience, patience);
    way.on_host += none_[stage].saved_bytes;
    // It leaves the device after so many stages, and comes back one stage ahead.
    const int64_t on_way = std::max<int64_t>(1, patience) * none_[stage].saved_bytes;
    if (on_way > way.on_way) way.surplus += on_way - std::exchange(way.on_way, on_way);
    way.seconds += std::max(0.0, copy - forward) + std::max(0.0, copy - backward);
  }

  double seconds(double flops) const { return flops / speed_.flops_per_second; }

  void take_items(Way& way) const {
    for (const Item& item : items_) {
      if (way.surplus <= 0) break;
      if (way.moved.contains(item.stage)) continue;
      way.items.push_back(item);
      way.surplus -= item.bytes;
    }
    // Items that the last one has made unnecessary are given back.
    for (size_t i = way.items.size(); i-- > 0;) {
      if (way.surplus + way.items[i].bytes > 0) continue;
      way.surplus += way.items[i].bytes;
      way.items.erase(way.items.begin() + static_cast<std::ptrdiff_t>(i));
    }
    for (const Item& item : way.items) way.seconds += seconds(item.flops);
  }

  void take_stages(Way& way) const {
    for (size_t stage = 0; stage < stages_.size() && way.surplus > 0; ++stage) {
      if (way.moved.contains(stage)) continue;
      way.whole.insert(stage);
      way.surplus -= none_[stage].saved_bytes;
      if (moves_input(stage) && fits_host(way, full_[stage].saved_bytes)) {
        way.inputs.insert(stage);
        way.on_host += full_[stage].saved_bytes;
      } else {
        way.surplus += full_[stage].saved_bytes;
      }
      way.seconds += seconds(full_[stage].backward_flops - none_[stage].backward_flops);
      for (const Item& item : way.items) {
        if (item.stage != stage) continue;
        way.surplus += item.bytes;
        way.seconds -= seconds(item.flops);
      }
    }
    std::erase_if(way.items, [&](const Item& item) { return way.whole.contains(item.stage); });
  }

  bool moves_input(size_t stage) const { return offloads_ && !is_last(stage); }
  bool fits_host(const Way& way, int64_t bytes) const {
    return static_cast<double>(way.on_host + bytes) <= speed_.host_memory_bytes;
  }

  [[noreturn]] void refuse(const Way& way, const Recomputation& result) const {
    const double least = config_.activation_checkpointing.memory_budget +
                         static_cast<double>(way.surplus) / static_cast<double>(result.most - result.least);
    fail(ErrorKind::kUsage,
         "activation_checkpointing.memory_budget = ", config_.activation_checkpointing.memory_budget,
         " is less than can be had by recomputing operations that do not communicate, which mesh.model > 1 "
         "allows; set at least ",
         std::ceil(100 * least) / 100, ", or mode = \"full\"");
  }

  std::vector<nn::StageRecomputation> chosen(const Way& way) const {
    std::map<size_t, nn::StageRecomputation> by_stage;
    for (const size_t stage : way.moved) by_stage[stage].offload = true;
    for (const size_t stage : way.whole) {
      by_stage[stage].whole = true;
      by_stage[stage].offload = way.inputs.contains(stage);
    }
    for (const Item& item : way.items) {
      by_stage[item.stage].operations.push_back(operations_[item.operation]);
    }
    std::vector<nn::StageRecomputation> chosen;
    for (auto& [stage, part] : by_stage) {
      part.path = stages_[stage];
      chosen.push_back(std::move(part));
    }
    return chosen;
  }

  const config::Config& config_;
  const MachineSpeed speed_;
  const PassDevice device_;
  const bool offloads_;  ///< whether stages may be moved
  std::vector<std::string> stages_, operations_;
  std::vector<std::vector<std::string>> recomputable_;
  Shares none_, full_;  ///< without recomputation, and of stages that are recomputed whole
  std::vector<Item> items_;
  double flops_ = 0;  ///< products of the last choice that was recorded
};

}  // namespace

std::string Recomputation::text() const {
  if (!options.chosen || options.chosen->empty()) return "nothing";
  std::vector<std::pair<std::string, int64_t>> counts;
  const auto count = [&](const std::string& what) {
    const auto found = std::ranges::find(counts, what, &std::pair<std::string, int64_t>::first);
    found == counts.end() ? static_cast<void>(counts.emplace_back(what, 1))
                          : static_cast<void>(++found->second);
  };
  for (const nn::StageRecomputation& stage : *options.chosen) {
    if (stage.whole) count("everything");
    for (const std::string& operation : stage.operations) count(operation);
    if (stage.offload) count(stage.whole ? "the input moved" : "nothing, but all moved,");
  }
  std::vector<std::string> parts;
  for (const auto& [what, stages] : counts) {
    parts.push_back(concat(what, " in ", stages, parts.empty() ? stages == 1 ? " stage" : " stages" : ""));
  }
  return util::join(parts, ", ");
}

Recomputation choose_recomputation(const config::Config& config, const MachineSpeed& speed,
                                   PassDevice device) {
  return RecomputationChooser(config, speed, device).choose();
}

}  // namespace fsdp::plan
