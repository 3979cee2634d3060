#pragma once

// Owners of nodes of autograd. libtorch's are std::shared_ptr, and c10::intrusive_ptr in later versions (2.15
// has it, 2.11 has not). What differs between versions of libtorch is told apart here and nowhere else.

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace fsdp::util {

using NodePtr = decltype(torch::autograd::Edge::function);
inline constexpr bool kNodesAreShared = std::is_same_v<NodePtr, std::shared_ptr<torch::autograd::Node>>;
using WeakNodePtr = std::conditional_t<kNodesAreShared, std::weak_ptr<torch::autograd::Node>,
                                       c10::weak_intrusive_ptr<torch::autograd::Node>>;

/// Makes a node of class T. Its deletion does not recurse into the nodes after it, which could be thousands.
template <typename T, typename... Arguments>
auto make_node(Arguments&&... arguments) {
  if constexpr (kNodesAreShared) {
    return std::shared_ptr<T>(new T(std::forward<Arguments>(arguments)...),
                              [](auto* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<T>(std::forward<Arguments>(arguments)...);
  }
}

}  // namespace fsdp::util
