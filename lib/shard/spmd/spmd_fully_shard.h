#pragma once

// FSDP via SPMD (PyTorch/XLA's "FSDPv2"): sharding declared on a mesh, per parameter, on the engine of
// fully_shard(). Each parameter is cut on one dimension over the mesh axis data and replicated over dcn.
// Activations are cut on their batch dimension over dcn x data.
//
//   comm::Mesh mesh({.dcn = 2, .data = 4}, communicator);
//   SpmdOptions options;
//   options.auto_wrap_policy = stage_type_policy({"block"});
//   auto engine = spmd_fully_shard(*model, mesh, {}, options);
//   at::Tensor logits = model->forward(batch);      // the whole batch in, this rank's rows out
//
// or SpmdFullyShardedDataParallel (shard/spmd/spmd_module.h), which wraps any module.
//
// Inputs of the outermost sharded module: an activation with a mark (mark_sharding(), mark_local_shard()) is
// this rank's part, or whole if its mark says so. An activation without a mark is the whole batch, present on
// every rank, and is cut. The output is marked as sharded on its batch dimension. Inside the module, every
// activation is this rank's part, and nothing is cut again.
//
// The backward barrier: the gradients of a unit are communicated when its own backward has ended, in separate
// collectives, never joined with those of another unit. The loss is the mean of the ranks' losses.

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "comm/api/mesh.h"
#include "shard/engine/engine.h"
#include "shard/engine/wrap_policy.h"
#include "shard/spmd/sharding_marks.h"

namespace fsdp::shard {

/// Marks the module's output, which by default is marked as sharded on its batch dimension: a function of
/// (const at::Tensor& output, const comm::Mesh&). The output is this rank's part, so mark_sharding() states
/// its spec and cuts nothing. If the function returns a tensor, that tensor replaces the output.
class ShardOutput {
 public:
  ShardOutput() = default;
  template <typename Function>
  requires(!std::same_as<std::decay_t<Function>, ShardOutput>) &&
      std::invocable<Function&, const at::Tensor&, const comm::Mesh&> ShardOutput(
          Function function) {  // NOLINT(google-explicit-constructor): a lambda is the usual argument
    function_ = [function = std::move(function)](const at::Tensor& output, const comm::Mesh& mesh) mutable {
      if constexpr (std::is_void_v<std::invoke_result_t<Function&, const at::Tensor&, const comm::Mesh&>>) {
        function(output, mesh);
        return output;
      } else {
        return at::Tensor(function(output, mesh));
      }
    };
  }

  explicit operator bool() const { return static_cast<bool>(function_); }
  at::Tensor operator()(const at::Tensor& output, const comm::Mesh& mesh) const {
    return function_(output, mesh);
  }

 private:
  std::function<at::Tensor(const at::Tensor&, const comm::Mesh&)> function_;
};

/// Options of spmd_fully_shard(). The default is hybrid sharding, each parameter on a dimension of its own.
struct SpmdOptions {
  SpmdOptions() {
    shard.layout = Layout::kPerParameter;
    shard.strategy = Strategy::kHybridShard;
  }

  /// Chooses the inner modules that become units; not called for modules inside one that was sharded before.
  /// Empty: the module is one unit, and so is each inner module sharded before. A policy that chooses none
  /// causes a warning.
  WrapPolicy auto_wrap_policy;
  /// All other options. The strategy full_shard cuts over dcn x data. wrap_policy is ignored; shard_dimension
  /// and shard_1d_parameters apply to parameters without a mark.
  ShardOptions shard;
  /// The source of parameters on the meta device (deferred initialization), as in fully_shard().
  Materialize materialize;
};

/// Shards the parameters of a Stage or Hooked module in place and attaches hooks to it; names are unchanged.
/// If it has several outputs, the first is the sharded activation, with a warning.
///
/// Layers can be sharded one by one, inner ones first, and the remaining parameters with the outermost
/// module. The units of an inner module become units of the outer module's engine, and the inner engine ends.
/// The inner module keeps its shard_output, other hooks on it (recomputation) in their order, and its
/// options: the dimension on which each parameter is cut, the parameters that stay whole or in float32, and
/// for its units the options of wrap() (shard/engine/wrap.h) that are not the default: strategy, resharding,
/// types, offload. Options that only a whole engine has (layout, prefetch) must be the outer call's too if
/// they are not the default. Meanwhile the weights of one unit at a time are whole in memory.
///
/// Ranks of the axis model compute layers together whose parameters are marked with that axis
/// (shard/spmd/model_marks.h), which sets ShardOptions::parts. Such a module must have no inner modules
/// sharded before.
///
/// Throws Error(kUsage) for a module that is sharded already, for options and marks that contradict each
/// other, and for a mark that cuts a parameter on more than one dimension or over axes other than the
/// strategy's. Collective.
std::shared_ptr<Engine> spmd_fully_shard(torch::nn::Module& module, const comm::Mesh& mesh,
                                         ShardOutput shard_output = {}, SpmdOptions options = {},
                                         std::shared_ptr<comm::Trace> trace = nullptr);

namespace detail {

/// `first_output_is_chosen`: whether to omit the warning about several outputs.
std::shared_ptr<Engine> spmd_fully_shard(torch::nn::Module& module, const comm::Mesh& mesh,
                                         ShardOutput shard_output, SpmdOptions options,
                                         std::shared_ptr<comm::Trace> trace, bool first_output_is_chosen);

}  // namespace detail

/// Returns a line for each parameter of the engine and each of the given activations, with its global and
/// local shape, its spec, its type and this rank, such as
///
///   rank 1  layers.0.weight  global [8, 4]  local [4, 4]  (data, whole)  float32
std::string spmd_debug(const Engine& engine,
                       const std::vector<std::pair<std::string, at::Tensor>>& activations = {});

}  // namespace fsdp::shard
