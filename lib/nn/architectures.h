#pragma once

// What model.architecture and training.loss can be. Needs no libtorch; how models are made is in nn/decoder.h.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "util/plugin_values.h"
#include "util/registry.h"

namespace at {
class Tensor;
}

namespace fsdp::nn {

struct Architecture {
  /// Full names of the config keys that weights determine, beside the sizes that all architectures have: two
  /// models that differ in one of these do not compute the same with the same weights.
  std::vector<std::string> keys = {};
  std::string plugin = {};  ///< that has added it; empty: built in, and known to transformers
};

util::Registry<Architecture>& architectures();

/// Whether it is built in: then Hugging Face's transformers has it too, and its config.json describes it.
bool is_built_in_architecture(std::string_view name);

/// logits: [B, T, V], targets: [B, T] int64 -> the mean over the targets that are not -100, in fp32; 0 where
/// there is none. Called by every rank with its own rows.
using LossFunction =
    std::function<at::Tensor(const at::Tensor& logits, const at::Tensor& targets, const util::PluginValues&)>;

/// The built-in loss. Its function is null: a model's head computes it without all logits at once.
inline constexpr const char* kCrossEntropy = "cross_entropy";

util::Registry<LossFunction>& losses();

}  // namespace fsdp::nn
