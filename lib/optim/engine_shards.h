#pragma once

// Optimizers over the shards of an engine:
//
//   auto optimizer = optim::make_optimizer(options, optim::flat_parameters(*engine, options));
//   loss.backward();
//   optimizer->step(optim::shard_gradients(*engine), lr);
//   engine->zero_gradients();

#include <vector>

#include "optim/optimizer.h"
#include "shard/engine.h"
#include "shard/matrix_exchange.h"

namespace fsdp::optim {

/// The optimizer's view of the engine's shards: one flat parameter per FSDP unit. Frozen parameters and
/// padding are not updated; the treatment of others is treatment_of().
std::vector<FlatParameter> flat_parameters(const shard::Engine& engine, const OptimizerOptions& options);

/// The gradients for Optimizer::step(); undefined for units without one.
std::vector<at::Tensor> shard_gradients(const shard::Engine& engine);

/// The whole matrices of flat_parameters(), for muon, and sums over its tensors, for lamb and adafactor.
class ShardedMatrices final : public WholeMatrices {
 public:
  /// The engine must outlive the object.
  ShardedMatrices(const shard::Engine& engine, const OptimizerOptions& options);

  bool has_matrices(size_t parameter) const override { return exchange_.has_matrices(parameter); }
  void map(size_t parameter, const at::Tensor& flat, const Function& function) override {
    exchange_.map(parameter, flat, function);
  }
  void add_up(size_t parameter, const at::Tensor& sums) override;

 private:
  const shard::Engine& engine_;
  shard::MatrixExchange exchange_;
};

}  // namespace fsdp::optim
