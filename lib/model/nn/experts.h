#pragma once

// A feed-forward of experts, of which each token uses some (Shazeer et al.: Outrageously large neural
// networks, 2017), as transformers' Mixtral and Qwen3-MoE compute it:
//
//   p = softmax(W x) over all experts, in fp32; the token's experts are those with the k largest
//   y = sum of p_e expert_e(x) over these, whose p may be divided by their sum first
//
// Each expert is a stage, "expert", and so can be an FSDP unit. Every expert runs in every pass that autograd
// records or that a hook sees, also without tokens: all ranks have to gather and reduce the same units in the
// same order.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/families/options.h"
#include "model/nn/layers.h"
#include "model/nn/stage.h"

namespace fsdp::nn {

/// The loss that balances the experts of one forward pass (Fedus et al.: Switch transformers, 2021, section
/// 2.2), of all layers together, as transformers' load_balancing_loss_func computes it:
///
///   experts * sum over experts of (assignments / R) * (sum of p / R)     R: tokens times layers with experts
///
/// over the tokens of this pass, which are those of a rank's micro-batch; padding does not count, as with
/// transformers' attention mask. Its gradient does not come through the graph, but is added to that of each
/// layer's p, which layers that backward recomputes have too.
class ExpertBalance {
 public:
  /// is_token: bool, one for each of the N rows of a layer; undefined: all are tokens.
  explicit ExpertBalance(double coefficient, const at::Tensor& is_token = {});

  /// Records the routing of a layer. probabilities: [N, experts] fp32, chosen: the experts of each row, [N,
  /// k] int64, assignments: how often each expert was chosen, [experts] int64
  void note(const at::Tensor& probabilities, const at::Tensor& chosen, const at::Tensor& assignments);
  /// Returns loss + coefficient * value(), or the loss itself if no layer ran, and ends the pass: layers that
  /// run afterwards are recomputed and do not count again.
  at::Tensor added_to(const at::Tensor& loss);
  /// [] fp64
  at::Tensor value() const;

 private:
  struct BalanceState {
    double coefficient = 0;
    at::Tensor counts = {};  ///< [N] fp64: 1 for a token, 0 for padding; or undefined
    at::Tensor assignments = {}, probabilities = {};  ///< sums over tokens and layers: [experts] fp64
    at::Tensor tokens = {};                           ///< tokens times layers: [] fp64
    bool has_ended = false;
    at::Tensor gradient = {};  ///< gradient of the loss's term, while backward runs

    /// Gradient of the probabilities of a layer's tokens: [N or 1, experts] fp32
    at::Tensor gradient_of_rows() const;
  };

  std::shared_ptr<BalanceState> state_;  ///< shared with autograd's hooks
};

/// [B, T, D] -> [B, T, D]
class ExpertFeedForward final : public Stage {
 public:
  explicit ExpertFeedForward(const ModelOptions& options);
  std::string type_name() const override { return "feed_forward"; }
  std::vector<std::string> recomputable() const override;
  void recompute(const std::vector<std::string>& operations) override;

 protected:
  at::Tensor compute(const at::Tensor& x, const StageContext& context) override;

 private:
  class Router;

  int64_t chosen_;  ///< number of experts of a token
  bool renormalizes_;
  std::shared_ptr<Router> router_;
  std::shared_ptr<StageList> experts_;
};

}  // namespace fsdp::nn
