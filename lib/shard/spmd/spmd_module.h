#pragma once

// SpmdFullyShardedDataParallel: wraps any module for FSDP via SPMD.

#include <c10/util/Type.h>

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "base/util/error.h"
#include "base/util/log.h"
#include "model/nn/hooked.h"
#include "model/nn/stage.h"
#include "shard/spmd/spmd_fully_shard.h"

namespace fsdp::shard {

namespace detail {

template <typename T>
struct BeginsWithTensor : std::false_type {};
template <typename... Rest>
struct BeginsWithTensor<std::tuple<at::Tensor, Rest...>> : std::true_type {};
template <typename Second>
struct BeginsWithTensor<std::pair<at::Tensor, Second>> : std::true_type {};

template <typename Result, typename M, typename... Arguments>
std::decay_t<Result> result_of(Result (M::*)(Arguments...));
template <typename Result, typename M, typename... Arguments>
std::decay_t<Result> result_of(Result (M::*)(Arguments...) const);

/// Whether forward is one function, neither a template nor overloaded.
template <typename M>
concept HasOneForward = requires {
  &M::forward;
};

/// The type that forward returns; for a template, the type with a tensor as argument.
template <typename M>
struct ForwardResult {
  using Type = std::decay_t<decltype(std::declval<M&>().forward(std::declval<const at::Tensor&>()))>;
};
template <HasOneForward M>
struct ForwardResult<M> {
  using Type = decltype(result_of(&M::forward));
};
template <typename M>
struct ForwardResult<nn::HookedModule<M>> : ForwardResult<M> {};

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

/// The output of a module, as hooks see it: the sharded activation first.
template <typename Output>
struct WithActivation {
  Output output;
  const std::function<at::Tensor&(Output&)>& select;

  template <typename Visit>
  void visit_tensors(Visit&& visit) {
    at::Tensor& activation = select(output);
    visit(activation);
    nn::CallTensors all;
    nn::collect_tensors(output, all);
    for (at::Tensor* tensor : all) {
      if (tensor != &activation) visit(*tensor);
    }
  }
};

}  // namespace detail

/// Shards a module (see spmd_fully_shard()) and runs it: forward() has the arguments and the result of the
/// module's forward. Names of parameters get no prefix. Inputs and outputs are seen in the types that
/// model/nn/hooked.h lists. Each input without a mark is cut on its batch dimension.
///
/// The activation that is sharded on its batch dimension is, by the type that the module's forward returns,
///   at::Tensor                                           the tensor
///   std::tuple<at::Tensor, ...>, std::pair<at::Tensor, T>  element 0, with a warning
///   others                                               chosen by `select_output`; Error(kUsage) without it
///
/// Wrappers nest: register an inner one in the outer module in place of the module that it wraps. A wrapped
/// Stage may also be called, and registered, itself.
template <typename Wrapped>
class SpmdFullyShardedDataParallel : public torch::nn::Module, public nn::HookedCalls {
 public:
  using Output = typename detail::ForwardResult<Wrapped>::Type;
  using SelectOutput = std::function<at::Tensor&(Output&)>;

  /// Collective. Errors are those of spmd_fully_shard(). `shard_output` replaces the default mark of the
  /// activation, `select_output` the rule above.
  SpmdFullyShardedDataParallel(std::shared_ptr<Wrapped> module, const comm::Mesh& mesh,
                               ShardOutput shard_output = {}, SpmdOptions options = {},
                               SelectOutput select_output = {})
      : module_(std::move(module)), select_(select_output ? std::move(select_output) : output_rule()) {
    detail::register_members(*module_, *this);
    engine_ = detail::spmd_fully_shard(*this, mesh, std::move(shard_output), std::move(options), nullptr,
                                       /*first_output_is_chosen=*/true);
  }
  SpmdFullyShardedDataParallel(const SpmdFullyShardedDataParallel&) = delete;
  SpmdFullyShardedDataParallel& operator=(const SpmdFullyShardedDataParallel&) = delete;

  /// Inputs: marked activations, or the whole batch. Collective.
  template <typename... Arguments>
  Output forward(Arguments&&... arguments) {
    if constexpr (kIsStage) {
      return module_->forward(std::forward<Arguments>(arguments)...);
    } else {
      return nn::detail::run_hooked(
                 hooks(), std::tuple<std::decay_t<Arguments>...>(std::forward<Arguments>(arguments)...),
                 [this](auto&&... given) {
                   return detail::WithActivation<Output>{
                       module_->forward(std::forward<decltype(given)>(given)...), select_};
                 })
          .output;
    }
  }

  const std::shared_ptr<Wrapped>& module() const { return module_; }
  /// Gives access to the module's members.
  Wrapped* operator->() const { return module_.get(); }
  Engine& engine() const { return *engine_; }

  /// Indexes the module, such as a Sequential.
  template <typename Index>
  decltype(auto) operator[](Index index) {
    return (*module_)[index];
  }

  std::string type_name() const override {
    if constexpr (std::is_base_of_v<nn::Hookable, Wrapped>) {
      return module_->type_name();
    } else {
      return nn::detail::type_name_of(typeid(Wrapped));
    }
  }
  /// The module that has the hooks: a Stage has its own.
  nn::Hookable& hooked() override {
    if constexpr (kIsStage) {
      return *module_;
    } else {
      return *this;
    }
  }

 private:
  static constexpr bool kIsStage = std::is_base_of_v<nn::Stage, Wrapped>;

  static SelectOutput output_rule() {
    if constexpr (std::is_same_v<Output, at::Tensor>) {
      return [](at::Tensor& output) -> at::Tensor& { return output; };
    } else if constexpr (detail::BeginsWithTensor<Output>::value) {
      return [warned = false](Output& output) mutable -> at::Tensor& {
        if (!std::exchange(warned, true)) {
          util::log_warning(
              "SpmdFullyShardedDataParallel: the module returns a tuple, whose element 0 is taken to be the "
              "sharded activation; pass select_output to choose another");
        }
        return std::get<0>(output);
      };
    } else {
      fail(ErrorKind::kUsage,
           "SpmdFullyShardedDataParallel: expected a module whose forward returns a tensor, or a tuple "
           "that begins with one; found ",
           c10::demangle_type<Output>(),
           "; pass select_output, and shard_output if it is not sharded on its first dimension");
    }
  }

  std::shared_ptr<Wrapped> module_;
  SelectOutput select_;
  std::shared_ptr<Engine> engine_;
};

}  // namespace fsdp::shard
