#pragma once

// SpmdFullyShardedDataParallel: wraps any module for FSDP via SPMD.

#include <c10/util/Type.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "shard/spmd_fully_shard.h"
#include "util/error.h"
#include "util/log.h"

namespace fsdp::shard {

namespace detail {

template <typename T>
struct IsTupleOfTensorFirst : std::false_type {};
template <typename... Rest>
struct IsTupleOfTensorFirst<std::tuple<at::Tensor, Rest...>> : std::true_type {};

/// Registers the parameters, buffers and children of `from` with `to`, under the same names.
inline void register_members(const torch::nn::Module& from, torch::nn::Module& to) {
  for (const auto& parameter : from.named_parameters(/*recurse=*/false)) {
    to.register_parameter(parameter.key(), parameter.value(), parameter.value().requires_grad());
  }
  for (const auto& buffer : from.named_buffers(/*recurse=*/false)) {
    to.register_buffer(buffer.key(), buffer.value());
  }
  for (const auto& child : from.named_children()) to.register_module(child.key(), child.value());
}

/// A stage around a module whose forward may return any type: the stage's output is the sharded activation
/// selected from the result. Names of parameters are unchanged.
template <typename Wrapped, typename Output>
class OutputAdaptor final : public nn::Stage {
 public:
  /// Returns a reference to the activation in an output.
  using Select = std::function<at::Tensor&(Output&)>;

  OutputAdaptor(std::shared_ptr<Wrapped> module, Select select)
      : module_(std::move(module)), select_(std::move(select)) {
    register_members(*module_, *this);
  }

  std::string type_name() const override { return "module"; }

  Output forward_all(const at::Tensor& input) {
    at::Tensor activation = forward(input);
    Output output = std::move(*output_);
    output_.reset();
    select_(output) = activation;
    return output;
  }

 protected:
  at::Tensor compute(const at::Tensor& input, const nn::StageContext&) override {
    output_.emplace(module_->forward(input));
    return select_(*output_);
  }

 private:
  std::shared_ptr<Wrapped> module_;
  Select select_;
  std::optional<Output> output_;  ///< between compute() and the end of forward
};

}  // namespace detail

/// Shards a module with `forward(at::Tensor)` (see spmd_fully_shard()) and runs it. Names of parameters get
/// no prefix.
///
/// The activation that is sharded on its batch dimension is, by the type that the module's forward returns,
///   at::Tensor                    the tensor
///   std::tuple<at::Tensor, ...>   element 0, with a warning
///   others                        chosen by `select_output`; Error(kUsage) without it
/// The loss must depend on the module's parameters through that activation only.
template <typename Wrapped>
class SpmdFullyShardedDataParallel : public torch::nn::Module {
 public:
  using Output = std::decay_t<decltype(std::declval<Wrapped&>().forward(std::declval<const at::Tensor&>()))>;
  using SelectOutput = std::function<at::Tensor&(Output&)>;

  /// Collective. Errors are those of spmd_fully_shard(). `shard_output` replaces the default mark of the
  /// activation, `select_output` the rule above.
  SpmdFullyShardedDataParallel(std::shared_ptr<Wrapped> module, const comm::Mesh& mesh,
                               ShardOutput shard_output = {}, SpmdOptions options = {},
                               SelectOutput select_output = {})
      : module_(std::move(module)) {
    if constexpr (kIsStage) {
      stage_ = module_;
      engine_ = spmd_fully_shard(*module_, mesh, std::move(shard_output), std::move(options));
    } else {
      if (!select_output) select_output = output_rule();
      stage_ = std::make_shared<detail::OutputAdaptor<Wrapped, Output>>(module_, std::move(select_output));
      engine_ = spmd_fully_shard(*stage_, mesh, std::move(shard_output), std::move(options));
    }
    detail::register_members(*stage_, *this);
  }

  /// input: a marked activation, or the whole batch. Collective.
  Output forward(const at::Tensor& input) {
    if constexpr (kIsStage) {
      return stage_->forward(input);
    } else {
      return static_cast<detail::OutputAdaptor<Wrapped, Output>&>(*stage_).forward_all(input);
    }
  }

  const std::shared_ptr<Wrapped>& module() const { return module_; }
  Engine& engine() const { return *engine_; }

  /// Indexes the module, such as a Sequential.
  template <typename Index>
  decltype(auto) operator[](Index index) {
    return (*module_)[index];
  }

 private:
  static constexpr bool kIsStage = std::is_base_of_v<nn::Stage, Wrapped>;

  static SelectOutput output_rule() {
    if constexpr (std::is_same_v<Output, at::Tensor>) {
      return [](at::Tensor& output) -> at::Tensor& { return output; };
    } else if constexpr (detail::IsTupleOfTensorFirst<Output>::value) {
      return [warned = false](Output& output) mutable -> at::Tensor& {
        if (!std::exchange(warned, true)) {
          util::log_warning(
              "SpmdFullyShardedDataParallel: the module returns a tuple, whose element 0 is taken to be the "
              "sharded activation; pass select_output to choose another");
        }
        return std::get<0>(output);
      };
    } else {
      util::fail(util::ErrorKind::kUsage,
                 "SpmdFullyShardedDataParallel: expected a module whose forward returns a tensor, or a tuple "
                 "that begins with one; found ",
                 c10::demangle_type<Output>(),
                 "; pass select_output, and shard_output if it is not sharded on its first dimension");
    }
  }

  std::shared_ptr<Wrapped> module_;
  std::shared_ptr<nn::Stage> stage_;  ///< the module itself, or an adaptor around it
  std::shared_ptr<Engine> engine_;
};

}  // namespace fsdp::shard
