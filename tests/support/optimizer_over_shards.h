#pragma once

// Optimizers over the shards of a small model, however it is cut.

#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "base/tensor/seeded_random.h"
#include "shard/engine/fully_shard.h"
#include "shard/engine/layout_views.h"
#include "state/optim/engine_shards.h"
#include "support/segments_in_rows.h"
#include "support/sharded_run.h"

namespace fsdp::testing {

struct Cut {
  const char* name;
  int world_size;
  const char* strategy = "full_shard";
  const char* layout = "flat";
  int dcn = 1;
  OptionsByPath wrapped{};
  const char* storage = "float32";
  int64_t min_num_params = 200;
  bool in_rows = false;  ///< with cut_segments_into_rows()
  const char* hybrid_optimizer = "replicated";
};

/// Blocks in groups of their own, one without any.
inline OptionsByPath blocks_in_other_groups() {
  return {{"model.layers.0", {.strategy = "no_shard"}}, {"model.layers.1", {.strategy = "hybrid_shard"}}};
}

inline void PrintTo(const Cut& cut, std::ostream* out) { *out << cut.name; }

/// The gradient of a parameter, the same however it is cut.
inline at::Tensor gradient_of(const shard::ParameterPlace& place, int64_t step) {
  return at::randn(place.shape, util::named_generator(static_cast<uint64_t>(step), place.name),
                   at::TensorOptions(at::kFloat));
}

/// A model with matrices that are large enough for states in 8 bits.
inline nn::ModelOptions wide_options() {
  nn::ModelOptions shape = tiny_options();
  shape.hidden_size = 72;
  shape.intermediate_size = 104;
  return shape;
}

using Tensors = std::map<std::string, at::Tensor>;

/// One rank's part of a tiny model that is cut, with an optimizer.
class OptimizedRank {
 public:
  OptimizedRank(const Cut& cut, const optim::OptimizerOptions& update, comm::Communicator& communicator,
                const nn::ModelOptions& shape = tiny_options(), const std::vector<std::string>& frozen = {})
      : model_(make_initialized(shape)) {
    at::set_num_threads(1);
    for (const auto& parameter : model_->named_parameters()) {
      if (util::matches_any(parameter.key(), frozen)) parameter.value().requires_grad_(false);
    }
    shard::ShardOptions options;
    options.strategy = cut.strategy;
    options.hybrid_optimizer = cut.hybrid_optimizer;
    options.layout = cut.layout;
    options.min_num_params = cut.min_num_params;
    options.param_storage = cut.storage;
    const shard::EnableWrap scope;
    wrap_paths(*model_, cut.wrapped);
    engine_ = shard::fully_shard(*model_, options, comm::Mesh({.dcn = cut.dcn}, borrowed(communicator)));
    if (cut.in_rows) cut_segments_into_rows(*engine_);
    matrices_.emplace(*engine_, update);
    optimizer_ = optim::make_optimizer(update, optim::flat_parameters(*engine_, update), &*matrices_);
  }

  shard::Engine& engine() { return *engine_; }
  optim::Optimizer& optimizer() { return *optimizer_; }

  /// On gradient_of() of each parameter; units that `left_out` names have no gradient.
  void step(const std::vector<std::string>& left_out = {}) {
    std::vector<at::Tensor> gradients;
    for (const auto& unit : engine_->units()) {
      at::Tensor& flat = gradients.emplace_back();
      if (util::matches_any(unit->name(), left_out)) continue;
      const shard::UnitLayout& layout = unit->storage().layout();
      flat = at::zeros({layout.shard_numel()}, at::kFloat);
      for (size_t p = 0; p < layout.parameters().size(); ++p) {
        at::Tensor whole = gradient_of(layout.parameters()[p], optimizer_->step_count() + 1);
        shard::LayoutPiece piece = shard::local_piece(layout, p, unit->storage().place().rank, whole, flat);
        piece.gathered.copy_(piece.whole);
      }
    }
    optimizer_->step(gradients, 0.02);
  }

 private:
  std::shared_ptr<nn::Stage> model_;
  std::shared_ptr<shard::Engine> engine_;
  std::optional<optim::ShardedMatrices> matrices_;
  std::unique_ptr<optim::Optimizer> optimizer_;
};

/// The weights after some steps on such gradients.
inline Tensors trained(const Cut& cut, const optim::OptimizerOptions& update, int64_t steps = 3) {
  Tensors weights;
  comm::run_ranks_as_threads(cut.world_size, [&](comm::Communicator& communicator) {
    OptimizedRank rank(cut, update, communicator);
    for (int64_t step = 0; step < steps; ++step) rank.step();
    for (auto& [name, weight] : shard::full_state_dict(rank.engine(), {.rank0_only = true})) {
      weights[name] = weight;
    }
  });
  return weights;
}

}  // namespace fsdp::testing
