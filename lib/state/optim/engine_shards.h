#pragma once

// Optimizers over the shards of an engine:
//
//   auto optimizer = optim::make_optimizer(options, optim::flat_parameters(*engine, options));
//   loss.backward();
//   optimizer->step(optim::shard_gradients(*engine), lr);
//   engine->zero_gradients();

#include <vector>

#include "shard/engine/tensor_slice.h"
#include "shard/state/matrix_exchange.h"
#include "state/optim/optimizer.h"

namespace fsdp::shard {
class Engine;
}

namespace fsdp::optim {

/// The optimizer's view of the engine's shards: one flat parameter per FSDP unit. Frozen parameters and
/// padding are not updated; the other parameters get the treatment that treatment_of() returns.
std::vector<FlatParameter> flat_parameters(const shard::Engine& engine, const OptimizerOptions& options);

/// The gradients for Optimizer::step(). Undefined for units without a gradient.
std::vector<at::Tensor> shard_gradients(const shard::Engine& engine);

/// This rank's parts of the trainable parameters, for optimizers of torch::optim that treat each element
/// alone (SGD, Adam, AdamW, RMSprop, Adagrad). The parts are 1-D fp32 leaves of autograd, views of the
/// shards, under the names of the model; ranks may have different parts. After a backward pass their
/// gradients are this rank's parts of the mean gradient. Engine::zero_gradients() and the optimizer's
/// zero_grad() both begin a new sum. The tensors are valid as long as the engine has its units. A norm of a
/// part is not the norm of the parameter: clip with shard::clip_grad_norm().
///
/// Throws Error(kUsage) for shards in 16 bits, which need stochastic rounding (make_optimizer()), and for
/// shards in host memory whose gradients are on a device (fsdp.move_grads_to_cpu).
std::vector<shard::NamedTensor> named_parameters(const shard::Engine& engine);
/// The tensors of named_parameters().
std::vector<at::Tensor> parameters(const shard::Engine& engine);

/// Gathers the whole matrices of flat_parameters() for muon, and adds up sums over tensors for lamb and
/// adafactor.
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
