#pragma once

// Layers of libtorch that several ranks compute together (model/nn/parallelize.h). Hooks before and after
// their forward do what this library's own layers do themselves.

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <utility>

#include "model/nn/hooked.h"
#include "model/nn/layers.h"
#include "model/parallel/collectives.h"

namespace fsdp::nn {

/// A layer that ranks can share.
struct SharedLayer {
  enum class LayerKind { kLinear, kEmbedding, kHead };
  LayerKind kind = LayerKind::kLinear;
  at::Tensor weight = {}, bias = {};  ///< bias: undefined if there is none
  bool is_transposed = false;         ///< weight [in_features, out_features]
  bool is_of_libtorch = false;

  /// Dimension of the weight that ColwiseParallel cuts.
  int64_t output_dimension() const { return is_transposed ? 1 : 0; }
};
/// The module as a shared layer; nullopt for other modules.
std::optional<SharedLayer> shared_layer(torch::nn::Module& module);

/// Inputs of the layers of one module during a call of it. Layers that take the same tensor enter their
/// region with it once, so that its gradient is summed over the ranks once. Attached to the module.
class EnteredInputs final : public CallHook, public std::enable_shared_from_this<EnteredInputs> {
 public:
  at::Tensor enter(const at::Tensor& x, const parallel::Layout& from, const parallel::Ranks& ranks);

  std::shared_ptr<void> before(const CallTensors& inputs) override;
  void after(const CallTensors&) override {}

 private:
  struct Entered {
    at::Tensor x, result;
    int64_t version = 0;  ///< version of x, which may be changed in place
    bool is_recorded = false;
  };
  bool is_open_ = false;
  std::optional<Entered> last_;
};

/// Hook of a Hooked layer of libtorch.
class ParallelLayer : public CallHook {
 public:
  explicit ParallelLayer(ParallelForm form) : form_(std::move(form)) {}
  const ParallelForm& form() const { return form_; }

 private:
  ParallelForm form_;
};

/// `layer`: libtorch's Linear or Embedding, which outlives its hooks.
std::shared_ptr<ParallelLayer> parallel_layer(torch::nn::Module& layer, ParallelForm form);

}  // namespace fsdp::nn
