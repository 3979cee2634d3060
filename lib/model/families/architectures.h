#pragma once

// The values of model.architecture and training.loss. model/nn/decoder.h makes the models.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/util/plugin_values.h"
#include "base/util/registry.h"

namespace at {
class Tensor;
}

namespace fsdp::nn {

struct Architecture {
  /// Full names of the config keys that belong to the weights, besides the sizes that all architectures have:
  /// with the same weights, models that differ in one of these keys compute different results.
  std::vector<std::string> keys = {};
  std::string plugin = {};  ///< the plug-in that added it; empty: built in, and known to transformers
};

util::Registry<Architecture>& architectures();

/// Built-in architectures are those of Hugging Face's transformers, and its config.json describes them.
bool is_built_in_architecture(std::string_view name);

/// logits: [B, T, V], targets: [B, T] int64 -> the mean over the targets that are not -100, in fp32; 0 if
/// there is none. Each rank calls it with its own rows.
using LossFunction =
    std::function<at::Tensor(const at::Tensor& logits, const at::Tensor& targets, const util::PluginValues&)>;

/// The built-in loss. Its function is null: a model's head computes it, without all logits in memory at once.
inline constexpr const char* kCrossEntropy = "cross_entropy";

util::Registry<LossFunction>& losses();

}  // namespace fsdp::nn
