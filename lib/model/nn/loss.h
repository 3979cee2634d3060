#pragma once

#include <ATen/core/Tensor.h>

#include "model/families/architectures.h"
#include "model/nn/stage.h"

namespace fsdp::nn {

/// Mean cross-entropy in nats over the targets that are not -100 (0 if there is none), with `terms`, in fp32
/// for every type of logits. logits: [B, T, V], targets: [B, T] int64 -> scalar.
at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& targets,
                           const kernels::LossTerms& terms = {});

/// Log-probabilities of the targets, 0 for those that are -100, in fp32. is_greedy: receives whether no token
/// is likelier, [B, T] bool; null: nobody asks. logits: [B, T, V], targets: [B, T] int64 -> [B, T] fp32
at::Tensor log_probs_of(const at::Tensor& logits, const at::Tensor& targets, at::Tensor* is_greedy = nullptr);

/// The same of a model for ids [B, T], without scores of whole vocabularies in memory where the model is a
/// decoder of lib/model/nn.
struct TargetLogProbs {
  at::Tensor log_probs, is_greedy;
};
TargetLogProbs target_log_probs(Stage& model, const at::Tensor& ids, const at::Tensor& targets);

/// Options of loss_of(): the loss, and the rows for which it is computed.
struct LossOptions {
  kernels::LossTerms terms = {};          ///< terms of the built-in loss
  LossFunction function = nullptr;        ///< null: the built-in loss
  util::PluginValues plugin_values = {};  ///< values that `function` gets
  std::optional<DropoutChoice> dropout = std::nullopt;
  std::shared_ptr<const DocumentStarts> documents = nullptr;   ///< null: a row is one document
  std::shared_ptr<const parallel::CutSequence> cut = nullptr;  ///< null: rows are whole
  at::Tensor is_token = {};  ///< [B, T] bool, of `ids`: the others are padding; undefined: all are tokens
  /// Weight of the loss that balances experts (ExpertBalance).
  double router_aux_loss_coef = 0;
};
/// Returns the context of a forward whose output loss_of_output() takes.
StageContext loss_context(const at::Tensor& targets, const LossOptions& options);
/// Returns the mean loss for the model's output, its scores or the loss itself (StageContext::targets).
at::Tensor loss_of_output(const at::Tensor& output, const at::Tensor& targets, const LossOptions& options,
                          const StageContext& context);
/// Returns the log-probabilities of the targets, [B, T] fp32, 0 where a target is ignored; with a cut, of
/// this rank's part. Only the rows of `options` matter. without_adapters: StageContext::without_adapters.
/// balance: receives what balances experts, to be added to the loss; null where the model has none.
at::Tensor log_probs_of_targets(Stage& model, const at::Tensor& ids, const at::Tensor& targets,
                                const LossOptions& options, bool without_adapters = false,
                                std::shared_ptr<ExpertBalance>* balance = nullptr);
/// Returns the loss of each token of a lesson, [B, T] fp32, 0 where a target is ignored. Only the rows of
/// `options` matter.
at::Tensor losses_of_lesson(Stage& model, const at::Tensor& ids, const at::Tensor& targets,
                            const LossOptions& options, std::shared_ptr<const Lesson> lesson,
                            std::shared_ptr<ExpertBalance>* balance = nullptr);
/// Returns a teacher's distributions for ids [B, T]: its scores, or with `count` above 0 its likeliest
/// tokens.
kernels::TeacherRows teacher_rows(Stage& teacher, const at::Tensor& ids, const LossOptions& options,
                                  int64_t count, double temperature);
/// Returns the mean loss of the model's scores of ids [B, T] against targets [B, T]; with a cut, of this
/// rank's part of both.
at::Tensor loss_of(Stage& model, const at::Tensor& ids, const at::Tensor& targets,
                   const LossOptions& options = {});

}  // namespace fsdp::nn
