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

class RecomputationChooser {
 public:
  RecomputationChooser(const config::Config& config, PassDevice device) : config_(config), device_(device) {
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
                         .most = none.saved_bytes(),
                         .least = full.saved_bytes(),
                         .flops = none.flops()};
    const double share = config_.activation_checkpointing.memory_budget;
    surplus_ = static_cast<int64_t>((1 - share) * static_cast<double>(result.most - result.least));
    if (surplus_ > 0) {
      measure(none.shares(stages_));
      take_items();
      if (surplus_ > 0) take_stages(none.shares(stages_), full.shares(stages_), result);
    }
    result.options.chosen = chosen();
    const RecordedPass pass = recorded(result.options);
    result.kept = pass.saved_bytes();
    result.recomputed_flops = pass.flops() - none.flops();
    return result;
  }

 private:
  RecordedPass recorded(nn::CheckpointingOptions options) const {
    config::Config config = config_;
    config.activation_checkpointing = std::move(options);
    return record_pass(config, device_);
  }

  /// Records a pass for each operation, which all stages recompute.
  void measure(const Shares& none) {
    for (size_t operation = 0; operation < operations_.size(); ++operation) {
      nn::CheckpointingOptions options{.mode = nn::RecomputeMode::kSelective,
                                       .chosen = std::vector<nn::StageRecomputation>()};
      for (const std::string& path : stages_) options.chosen->push_back({path, {operations_[operation]}});
      const Shares shares = recorded(std::move(options)).shares(stages_);
      for (size_t stage = 0; stage < stages_.size(); ++stage) {
        const Item item{stage, operation, none[stage].saved_bytes - shares[stage].saved_bytes,
                        shares[stage].backward_flops - none[stage].backward_flops};
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

  void take_items() {
    for (const Item& item : items_) {
      if (surplus_ <= 0) break;
      taken_.push_back(item);
      surplus_ -= item.bytes;
    }
    // Items that the last one has made unnecessary are given back.
    for (size_t i = taken_.size(); i-- > 0;) {
      if (surplus_ + taken_[i].bytes > 0) continue;
      surplus_ += taken_[i].bytes;
      taken_.erase(taken_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  int64_t saved_by_items() const {
    int64_t bytes = 0;
    for (const Item& item : taken_) bytes += item.bytes;
    return bytes;
  }

  void take_stages(const Shares& none, const Shares& full, const Recomputation& result) {
    if (config_.mesh.model > 1) {
      const double kept = static_cast<double>(result.most) - static_cast<double>(saved_by_items());
      const double least =
          (kept - static_cast<double>(result.least)) / static_cast<double>(result.most - result.least);
      fail(ErrorKind::kUsage,
           "activation_checkpointing.memory_budget = ", config_.activation_checkpointing.memory_budget,
           " is less than can be had by recomputing operations that do not communicate, which mesh.model > 1 "
           "allows; set at least ",
           std::ceil(100 * least) / 100, ", or mode = \"full\"");
    }
    for (size_t stage = 0; stage < stages_.size() && surplus_ > 0; ++stage) {
      int64_t already = 0;
      for (const Item& item : taken_) already += item.stage == stage ? item.bytes : 0;
      whole_.insert(stage);
      surplus_ -= none[stage].saved_bytes - full[stage].saved_bytes - already;
    }
  }

  std::vector<nn::StageRecomputation> chosen() const {
    std::map<size_t, std::vector<std::string>> by_stage;
    for (const size_t stage : whole_) by_stage[stage];
    for (const Item& item : taken_) {
      if (!whole_.contains(item.stage)) by_stage[item.stage].push_back(operations_[item.operation]);
    }
    std::vector<nn::StageRecomputation> chosen;
    for (auto& [stage, operations] : by_stage) chosen.push_back({stages_[stage], std::move(operations)});
    return chosen;
  }

  const config::Config& config_;
  const PassDevice device_;
  std::vector<std::string> stages_, operations_;
  std::vector<std::vector<std::string>> recomputable_;
  int64_t surplus_ = 0;  ///< kept bytes beyond the budget
  std::vector<Item> items_, taken_;
  std::set<size_t> whole_;  ///< numbers of stages that are recomputed whole
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
    if (stage.operations.empty()) count("everything");
    for (const std::string& operation : stage.operations) count(operation);
  }
  std::vector<std::string> parts;
  for (const auto& [what, stages] : counts) {
    parts.push_back(concat(what, " in ", stages, parts.empty() ? stages == 1 ? " stage" : " stages" : ""));
  }
  return util::join(parts, ", ");
}

Recomputation choose_recomputation(const config::Config& config, PassDevice device) {
  return RecomputationChooser(config, device).choose();
}

}  // namespace fsdp::plan
