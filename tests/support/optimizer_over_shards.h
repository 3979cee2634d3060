#pragma once

// Optimizers over the shards of a small model, however it is cut.

#include <map>
#include <ostream>
#include <string>

#include "optim/engine_shards.h"
#include "shard/fully_shard.h"
#include "shard/layout_views.h"
#include "support/sharded_run.h"
#include "util/seeded_random.h"

namespace fsdp::testing {

struct Cut {
  const char* name;
  int world_size;
  const char* strategy = "full_shard";
  const char* layout = "flat";
  int dcn = 1;
  const char* storage = "float32";
  int64_t min_num_params = 200;
};

inline void PrintTo(const Cut& cut, std::ostream* out) { *out << cut.name; }

/// The gradient of a parameter, the same however it is cut.
inline at::Tensor gradient_of(const shard::ParameterPlace& place, int64_t step) {
  return at::randn(place.shape, util::named_generator(static_cast<uint64_t>(step), place.name),
                   at::TensorOptions(at::kFloat));
}

using Tensors = std::map<std::string, at::Tensor>;

/// The weights after some steps on such gradients.
inline Tensors trained(const Cut& cut, const optim::OptimizerOptions& update, int64_t steps = 3) {
  Tensors weights;
  comm::run_ranks_as_threads(cut.world_size, [&](comm::Communicator& communicator) {
    at::set_num_threads(1);
    auto model = make_initialized(tiny_options());
    shard::ShardOptions options;
    options.strategy = cut.strategy;
    options.layout = cut.layout;
    options.min_num_params = cut.min_num_params;
    options.param_storage = cut.storage;
    auto engine = shard::fully_shard(*model, options, comm::Mesh({.dcn = cut.dcn}, borrowed(communicator)));
    optim::ShardedMatrices matrices(*engine, update);
    auto optimizer = optim::make_optimizer(update, optim::flat_parameters(*engine, update), &matrices);
    for (int64_t step = 1; step <= steps; ++step) {
      std::vector<at::Tensor> gradients;
      for (const auto& unit : engine->units()) {
        const shard::UnitLayout& layout = unit->storage().layout();
        at::Tensor flat = at::zeros({layout.shard_numel()}, at::kFloat);
        for (size_t p = 0; p < layout.parameters().size(); ++p) {
          at::Tensor whole = gradient_of(layout.parameters()[p], step);
          shard::LayoutPiece piece = shard::local_piece(layout, p, unit->storage().place().rank, whole, flat);
          piece.gathered.copy_(piece.whole);
        }
        gradients.push_back(flat);
      }
      optimizer->step(gradients, 0.02);
    }
    for (auto& [name, weight] : shard::full_state_dict(*engine, {.rank0_only = true})) weights[name] = weight;
  });
  return weights;
}

}  // namespace fsdp::testing
