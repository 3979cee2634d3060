#pragma once

// Hooked<M>: any module of libtorch whose calls hooks can see.
//
// C++ modules have no forward hooks: a call of forward() goes straight to the module. Sharding has to see the
// calls of the modules that become FSDP units, so these are declared as Hooked, which derives from the module
// and runs the hooks around its forward(); parameter names do not change. nn::Stage, the base of this
// library's own models, has hooks too.
//
//   struct NetImpl : torch::nn::Module {
//     NetImpl() { register_module("block", block); register_module("head", head); }
//     std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x, std::optional<at::Tensor> mask) {
//       return {head(block(x, mask)), x};
//     }
//     fsdp::nn::Hooked<BlockImpl> block{/*BlockImpl's arguments*/ 64};
//     torch::nn::Linear head{64, 10};      // not a unit: belongs to the nearest enclosing one
//   };
//   fsdp::nn::Hooked<NetImpl> net;
//
// Hooks see the tensors in arguments and results of these types: at::Tensor, std::optional, std::vector,
// std::array, std::pair, std::tuple and std::map of such, and structs that have
//
//   template <typename Visit> void visit_tensors(Visit&& visit) { visit(hidden); visit(mask); }
//
// Tensors in other types are not seen. Hooks do not wait for gradients that enter or leave a module through
// such a tensor, so it must not depend on a parameter.

#include <ATen/core/Tensor.h>
#include <c10/util/Type.h>
#include <torch/nn/pimpl.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "model/nn/hookable.h"

namespace fsdp::nn {

/// Adds the tensors in `value` to `tensors`.
inline void collect_tensors(at::Tensor& value, CallTensors& tensors) {
  if (value.defined()) tensors.push_back(&value);
}
template <typename T>
void collect_tensors(T& value, CallTensors& tensors);

namespace detail {

template <typename T>
concept IsOptional = requires(T value) {
  value.has_value(), *value, value.reset();
};
template <typename T>
concept IsTuple = requires {
  std::tuple_size<T>::value;
};
template <typename T>
concept IsMap = requires {
  typename T::mapped_type;
};
template <typename T>
concept IsSequence = requires(T value) {
  typename T::value_type;
  value.begin();
  value.end();
}
&&!IsMap<T> && !std::is_same_v<T, std::string>;
struct AnyVisit {
  template <typename T>
  void operator()(T&&) const {}
};
template <typename T>
concept IsVisitable = requires(T value) {
  value.visit_tensors(AnyVisit());
};

/// "Block" for "net::BlockImpl".
inline std::string type_name_of(const std::type_info& type) {
  std::string name = c10::demangle(type.name());
  if (const size_t arguments = name.find('<'); arguments != std::string::npos) name.resize(arguments);
  if (const size_t space = name.rfind("::"); space != std::string::npos) name.erase(0, space + 2);
  if (name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

using Hooks = std::vector<std::shared_ptr<CallHook>>;

/// Puts `hook` in the place of `attached`; null erases that one.
inline void replace_hook(Hooks& hooks, const CallHook& attached, std::shared_ptr<CallHook> hook) {
  const auto found = std::ranges::find(hooks, &attached, &std::shared_ptr<CallHook>::get);
  if (found == hooks.end()) return;
  if (hook) {
    *found = std::move(hook);
  } else {
    hooks.erase(found);
  }
}

/// Runs `forward` on `arguments`, which hooks may change, with the hooks around it, the first outermost.
template <typename Arguments, typename Forward>
auto run_hooked(const Hooks& given, Arguments arguments, const Forward& forward) {
  const Hooks hooks = given;  // NOLINT(performance-*): forward may detach them
  CallTensors inputs;
  collect_tensors(arguments, inputs);
  std::vector<std::shared_ptr<void>> scopes;
  for (const auto& hook : hooks) scopes.push_back(hook->before(inputs));
  auto result = std::apply(forward, std::move(arguments));
  scopes.clear();
  CallTensors outputs;
  collect_tensors(result, outputs);
  for (auto hook = hooks.rbegin(); hook != hooks.rend(); ++hook) (*hook)->after(outputs);
  return result;
}

}  // namespace detail

template <typename T>
void collect_tensors(T& value, CallTensors& tensors) {
  if constexpr (detail::IsVisitable<T>) {
    value.visit_tensors([&](auto& member) { collect_tensors(member, tensors); });
  } else if constexpr (detail::IsMap<T>) {
    for (auto& [key, member] : value) collect_tensors(member, tensors);
  } else if constexpr (detail::IsSequence<T>) {
    if constexpr (!std::is_same_v<T, std::vector<bool>>) {
      for (auto& member : value) collect_tensors(member, tensors);
    }
  } else if constexpr (detail::IsTuple<T>) {
    std::apply([&](auto&... members) { (collect_tensors(members, tensors), ...); }, value);
  } else if constexpr (detail::IsOptional<T>) {
    if (value.has_value()) collect_tensors(*value, tensors);
  }
}

/// A module whose hooks see tensors only.
class HookedCalls : public Hookable {
 public:
  void attach(std::shared_ptr<CallHook> hook) override { hooks_.push_back(std::move(hook)); }
  void replace(const CallHook& attached, std::shared_ptr<CallHook> hook) override {
    detail::replace_hook(hooks_, attached, std::move(hook));
  }
  void detach_hooks() override { hooks_.clear(); }
  const detail::Hooks& hooks() const { return hooks_; }

 private:
  detail::Hooks hooks_;
};

/// M with hooks; see Hooked.
template <typename M>
class HookedModule : public M, public HookedCalls {
 public:
  using M::M;

  /// M::forward(arguments...), with its default arguments, between the hooks. It must not return void.
  template <typename... Arguments>
  auto forward(Arguments&&... arguments) {
    return detail::run_hooked(
        hooks(), std::tuple<std::decay_t<Arguments>...>(std::forward<Arguments>(arguments)...),
        [this](auto&&... given) { return M::forward(std::forward<decltype(given)>(given)...); });
  }

  std::string type_name() const override { return detail::type_name_of(typeid(M)); }
};

/// HookedModule with one signature, as torch::nn::Sequential needs it: "at::Tensor(const at::Tensor&)".
template <typename M, typename Signature>
class SequentialHookedModule;
template <typename M, typename Result, typename... Arguments>
class SequentialHookedModule<M, Result(Arguments...)> final : public HookedModule<M> {
 public:
  using HookedModule<M>::HookedModule;
  Result forward(Arguments... arguments) {
    return HookedModule<M>::forward(std::forward<Arguments>(arguments)...);
  }
};

/// A holder, as TORCH_MODULE makes them; M is a module itself, such as torch::nn::Conv2dImpl.
template <typename M>
class Hooked : public torch::nn::ModuleHolder<HookedModule<M>> {
 public:
  using torch::nn::ModuleHolder<HookedModule<M>>::ModuleHolder;

  /// forward(arguments...)
  template <typename... Arguments>
  auto operator()(Arguments&&... arguments) {
    return (*this)->forward(std::forward<Arguments>(arguments)...);
  }
  /// Indexes the module, such as a Sequential.
  template <typename Index>
  decltype(auto) operator[](Index index) {
    return (**this)[index];
  }
};
/// Hooked for the elements of a torch::nn::Sequential.
template <typename M, typename Signature = at::Tensor(const at::Tensor&)>
using SequentialHooked = torch::nn::ModuleHolder<SequentialHookedModule<M, Signature>>;

}  // namespace fsdp::nn
