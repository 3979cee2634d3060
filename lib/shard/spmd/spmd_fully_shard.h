#pragma once

// FSDP via SPMD (PyTorch/XLA's "FSDPv2"): sharding declared on a mesh, per parameter, on the engine of
// fully_shard(). Parameters are cut on one dimension each over the mesh axis data and replicated over dcn;
// activations are cut on their batch dimension over dcn x data.
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
// this rank's part, or whole if its mark says so; one without is the whole batch, present on every rank, and
// is cut. The output is marked as sharded on its batch dimension. Inside the module, every activation is this
// rank's part, and nothing is cut again.
//
// The backward barrier: the gradients of a unit are communicated when its own backward has ended, in separate
// collectives, never joined with those of another unit. As everywhere with the engine, the loss is the mean
// of the ranks' losses.

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

/// Marks the module's output, which otherwise is marked as sharded on its batch dimension: a function of
/// (const at::Tensor& output, const comm::Mesh&). The output is this rank's part: mark_sharding() states its
/// spec and cuts nothing. If the function returns a tensor, that takes the place of the output.
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

/// How spmd_fully_shard() shards a module; by default hybrid, each parameter on a dimension of its own.
struct SpmdOptions {
  SpmdOptions() {
    shard.layout = Layout::kPerParameter;
    shard.strategy = Strategy::kHybridShard;
  }

  /// Which inner modules become units; not asked about those inside a module that was sharded before. Empty:
  /// the module is one unit, and so is each inner module sharded before. A policy that finds none is warned
  /// of.
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
/// Layers can be sharded one by one, inner ones first, and the remaining parameters with the outermost module:
/// the units of an inner module become units of the engine of the module around it, and its own engine ends.
/// It keeps its shard_output, the hooks that others attached to it (recomputation) in their order, and its
/// options: the dimension on which each parameter is cut, the parameters that it keeps whole or in float32,
/// and for its units what wrap() (shard/engine/wrap.h) takes: strategy, resharding, types, offload, where they are
/// not the default. Options that only a whole engine has (layout, prefetch) must be the outer call's too if
/// they are not the default. The weights of one unit at a time are whole in memory meanwhile.
///
/// Parameters that are marked with the axis model make their layers ones that its ranks compute together
/// (shard/spmd/model_marks.h), and set ShardOptions::parts. Such a module has no inner ones sharded before.
///
/// Collective. Throws Error(kUsage) for a module that is sharded already, for options and marks that
/// contradict each other, and for a mark that cuts a parameter on more than one dimension or over other axes
/// than the strategy's.
std::shared_ptr<Engine> spmd_fully_shard(torch::nn::Module& module, const comm::Mesh& mesh,
                                         ShardOutput shard_output = {}, SpmdOptions options = {},
                                         std::shared_ptr<comm::Trace> trace = nullptr);

namespace detail {

/// `first_output_is_chosen`: no warning about several outputs.
std::shared_ptr<Engine> spmd_fully_shard(torch::nn::Module& module, const comm::Mesh& mesh,
                                         ShardOutput shard_output, SpmdOptions options,
                                         std::shared_ptr<comm::Trace> trace, bool first_output_is_chosen);

}  // namespace detail

/// For people: a line for each parameter of the engine and each of the given activations, with its global and
/// local shape, its spec, its type and this rank, such as
///
///   rank 1  layers.0.weight  global [8, 4]  local [4, 4]  (data, whole)  float32
std::string spmd_debug(const Engine& engine,
                       const std::vector<std::pair<std::string, at::Tensor>>& activations = {});

}  // namespace fsdp::shard
