#pragma once

// What a checkpoint holds of the training state on this rank: views, so that saving copies nothing and
// loading fills the live tensors.

#include <vector>

#include "checkpoint/tensor_slice.h"
#include "optim/optimizer.h"
#include "shard/engine.h"
#include "shard/matrix_exchange.h"

namespace fsdp::train {

/// The optimizer's view of the engine's shards: one flat parameter a unit; frozen parameters and padding are
/// not updated, and the others as the options say (optim::treatment_of()).
std::vector<optim::FlatParameter> flat_parameters(const shard::Engine& engine,
                                                  const optim::OptimizerOptions& options);

/// Their gradients, as Optimizer::step() takes them; undefined ones where a unit had none.
std::vector<at::Tensor> shard_gradients(const shard::Engine& engine);

/// Gives an optimizer over flat_parameters() the whole matrices.
class ShardedMatrices final : public optim::WholeMatrices {
 public:
  /// The engine must outlive the object.
  ShardedMatrices(const shard::Engine& engine, const optim::OptimizerOptions& options);

  bool has_matrices(size_t parameter) const override { return exchange_.has_matrices(parameter); }
  void map(size_t parameter, const at::Tensor& flat, const Function& function) override {
    exchange_.map(parameter, flat, function);
  }

 private:
  shard::MatrixExchange exchange_;
};

enum class SlicePurpose {
  kSave,  ///< of ranks that hold the same, each gives a part of it; together they give it once
  kLoad,  ///< every rank wants all that it holds
};

/// "model/<name>" of every parameter and "optimizer/<state>/<name>" of every trainable one that has the
/// state.
/// The optimizer must have been made from flat_parameters() of the same engine.
std::vector<checkpoint::TensorSlice> state_slices(const shard::Engine& engine,
                                                  const optim::Optimizer& optimizer, SlicePurpose purpose);

}  // namespace fsdp::train
