#pragma once

// The modules of a model with what a plan says of each, checked against each other (model/nn/parallelize.h).

#include <torch/nn/module.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/util/error.h"
#include "model/nn/parallel_layers.h"
#include "model/nn/parallel_plan.h"

namespace fsdp::nn {

/// Throws Error(kUsage) about a module.
template <typename... Parts>
[[noreturn]] void refuse_plan(const std::string& module, const Parts&... parts) {
  fail(ErrorKind::kUsage, "parallel plan, ", module, ": ", parts...);
}

struct PlannedModule {
  std::string path;
  std::shared_ptr<torch::nn::Module> module;
  std::optional<ColwiseParallel> colwise{};
  std::optional<RowwiseParallel> rowwise{};
  std::optional<SequenceParallel> sequence{};
  std::optional<PrepareModuleInput> input{};
  std::optional<PrepareModuleOutput> output{};
  std::optional<SharedLayer> layer{};  ///< if it is one

  template <typename Layer>
  Layer* as() const {
    return dynamic_cast<Layer*>(module.get());
  }
  bool is_linear() const { return layer && layer->kind == SharedLayer::LayerKind::kLinear; }
  bool is_embedding() const { return layer && layer->kind == SharedLayer::LayerKind::kEmbedding; }
  bool is_head() const { return layer && layer->kind == SharedLayer::LayerKind::kHead; }
  bool is_norm() const;
  bool has_style() const { return colwise || rowwise || sequence || input || output; }
  std::string parent() const { return path.substr(0, std::min(path.rfind('.'), path.size())); }
};

class PlannedModules {
 public:
  /// Throws Error(kUsage) for patterns without a module, styles that a module cannot have, and layouts that
  /// the next layer cannot take.
  PlannedModules(const torch::nn::Module& model, const ParallelPlan& plan);

  auto begin() const { return modules_.begin(); }
  auto end() const { return modules_.end(); }
  /// The stage around the module whose input is prepared; null outside of regions.
  const PlannedModule* region_of(const PlannedModule& module) const;

 private:
  void take(const ParallelPlan& plan);
  /// How activations lie on the ranks outside of regions.
  Layout layout_between() const;
  void check_layouts() const;
  void check_linear(const PlannedModule& linear, const Layout& between) const;
  bool has_neighbour(const PlannedModule& module, bool (*is_wanted)(const PlannedModule&)) const;

  std::vector<PlannedModule> modules_;
};

}  // namespace fsdp::nn
