#pragma once

// Objectives of preferences, from log-probabilities of completions. Their names, options and defaults are
// those of TRL (github.com/huggingface/trl).
//
//   dpo       Rafailov et al.: Direct preference optimization: your language model is secretly a reward
//             model, 2023; with label smoothing the conservative form of its authors
//   robust    Chowdhury et al.: Provably robust DPO: aligning language models with noisy feedback, 2024
//   hinge     Zhao et al.: SLiC-HF: sequence likelihood calibration with human feedback, 2023
//   ipo       Azar et al.: A general theoretical paradigm to understand learning from human preferences, 2023
//   exo_pair  Ji et al.: Towards efficient exact optimization of language model alignment, 2024
//   apo_*     D'Oosterlinck et al.: Anchored preference optimization, 2024
//   orpo      Hong et al.: ORPO: monolithic preference optimization without reference model, 2024
//   simpo     Meng et al.: SimPO: simple preference optimization with a reference-free reward, 2024
//   cpo       Xu et al.: Contrastive preference optimization, 2024
//   kto       Ethayarajh et al.: KTO: model alignment as prospect theoretic optimization, 2024

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "model/families/objectives.h"

namespace fsdp::nn {

struct CompletionScores {
  at::Tensor log_probs;   ///< [D] double: sums over completions, or means (Objective::averages)
  at::Tensor references;  ///< those of the reference, [D] double; undefined without one
  at::Tensor tokens;      ///< number of tokens of each completion, [D] double
  at::Tensor preferred;   ///< whether a document is chosen or desirable, [D] bool
  /// Single rows: estimate of the divergence of the model from its reference, at least 0; a double scalar.
  at::Tensor divergence;

  /// log_probs relative to the references, where there are any.
  at::Tensor relative() const { return references.defined() ? log_probs - references : log_probs; }
};

/// The even and the odd elements: those of chosen and of rejected documents. values: [2 P] -> [P], [P]
std::pair<at::Tensor, at::Tensor> chosen_and_rejected(const at::Tensor& values);

/// Losses of the samples. name: of objectives(). Calls a plug-in's function where the objective has one.
at::Tensor preference_losses(const std::string& name, const CompletionScores& scores,
                             const PreferenceOptions& options, const util::PluginValues& values);

/// Numbers for metrics, by TRL's names, as sums and the count that divides them.
struct PreferenceMetric {
  std::string name;
  at::Tensor sum, count;  ///< double scalars
};
/// Returns rewards/chosen, rewards/rejected, logps/chosen and logps/rejected, and of pairs also
/// rewards/accuracies and rewards/margins. The caller computes the margins of single rows from their means.
std::vector<PreferenceMetric> preference_metrics(const Objective& objective, const CompletionScores& scores,
                                                 const PreferenceOptions& options);

}  // namespace fsdp::nn
