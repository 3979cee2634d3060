#pragma once

// Objective: the loss of a micro-batch. A step trains on it, and a validation measures it.

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/api/mesh.h"
#include "model/nn/loss.h"
#include "model/nn/preferences.h"
#include "model/nn/stage.h"
#include "run/train/step_batches.h"
#include "setup/config/config.h"
#include "setup/config/second_model.h"

namespace fsdp::shard {
class ParameterSource;
}

namespace fsdp::train {

struct ShardedModel;

/// The unit of sums that many batches and ranks share.
inline constexpr double kMetricUnit = 1.0 / (int64_t{1} << 32);

/// Named numbers, such as "rewards/margins".
using NamedNumbers = std::vector<std::pair<std::string, double>>;

/// Parts of the loss of a batch, double scalars, which are not divided yet.
struct LossSums {
  at::Tensor of_samples = {};  ///< sum over samples; undefined: the loss is the cross entropy of tokens
  at::Tensor of_targets = {};  ///< sum over data::Batch::preferred_targets; undefined: none is added
};

class Objective {
 public:
  virtual ~Objective() = default;

  /// Returns a micro-batch's share of the step's mean loss, with autograd if that is enabled. `how`: the
  /// options of the loss, without the members that a batch sets. Collective.
  virtual at::Tensor loss(nn::Stage& model, const MicroBatch& micro_batch, const nn::LossOptions& how) = 0;
  /// Returns the parts of the loss of one batch of a validation. Collective.
  virtual LossSums sums(nn::Stage& /*model*/, const data::Batch& /*batch*/, const nn::LossOptions& /*how*/) {
    return {};
  }
  /// Returns the means of the metrics of the batches since the last call; empty if the loss is all.
  /// Collective.
  virtual NamedNumbers take_metrics() { return {}; }
  /// Returns the means of the metrics of batches that `run` computes, and leaves those of others. Collective.
  virtual NamedNumbers metrics_of(const std::function<void()>& run) {
    run();
    return {};
  }
  /// Names of all metrics.
  virtual std::vector<std::string> metric_names() const { return {}; }
};

/// The mean loss of all targets: training.loss.
class LanguageObjective final : public Objective {
 public:
  at::Tensor loss(nn::Stage& model, const MicroBatch& micro_batch, const nn::LossOptions& how) override;
};

/// Distillation: the mean over targets of the divergence from a teacher, mixed with the cross entropy
/// (model/kernels/linear_divergence.h).
class DistillationObjective final : public Objective {
 public:
  /// teacher: null: batches have its likeliest tokens.
  DistillationObjective(const nn::DistillationOptions& options, std::shared_ptr<const ShardedModel> teacher)
      : options_(options), teacher_(std::move(teacher)) {}

  at::Tensor loss(nn::Stage& model, const MicroBatch& micro_batch, const nn::LossOptions& how) override;

 private:
  nn::DistillationOptions options_;
  std::shared_ptr<const ShardedModel> teacher_;
};

/// An objective of preferences (model/nn/preferences.h). The loss is the mean over samples, and the cross
/// entropy that some objectives add the mean over tokens, both of the global batch.
class PreferenceObjective final : public Objective {
 public:
  /// reference: the model that gives the references; null: the files do, or the trained model without its
  /// adapters, or none is needed.
  PreferenceObjective(const config::Config& config, comm::Mesh mesh,
                      std::shared_ptr<const ShardedModel> reference);

  at::Tensor loss(nn::Stage& model, const MicroBatch& micro_batch, const nn::LossOptions& how) override;
  LossSums sums(nn::Stage& model, const data::Batch& batch, const nn::LossOptions& how) override;
  NamedNumbers take_metrics() override;
  NamedNumbers metrics_of(const std::function<void()>& run) override;
  /// Returns the references of a batch's documents: those that are stored, or those of the reference model,
  /// or of `model` without adapters. [documents] double. Collective.
  at::Tensor references(nn::Stage& model, const data::Batch& batch, const nn::LossOptions& how);
  std::vector<std::string> metric_names() const override;

 private:
  /// Sums of the log-probabilities of completions, [documents] double.
  at::Tensor scores(nn::Stage& model, const data::Batch& batch, const nn::LossOptions& how,
                    bool is_reference);
  /// The mean over all ranks of the difference of model and reference on exchanged completions, at least 0.
  at::Tensor divergence(nn::Stage& model, const data::Batch& exchanged, const nn::LossOptions& how);
  /// Sums parts of rows over the ranks that have the other parts. Autograd gets this rank's part, as often as
  /// the engine divides it.
  at::Tensor over_row(const at::Tensor& part) const;
  void add_metric(const std::string& name, const at::Tensor& sum, const at::Tensor& count);

  nn::Objective objective_;
  std::string name_;
  nn::PreferenceOptions options_;
  util::PluginValues plugin_values_;
  comm::Mesh mesh_;
  std::shared_ptr<const ShardedModel> reference_;
  /// Sums and their counts, [2] int64 on the device, in units of kMetricUnit: such sums have the same bits in
  /// any order.
  std::map<std::string, at::Tensor> metrics_;
  at::Tensor cross_entropy_;                    ///< of the forward under way: sum over preferred targets
  std::shared_ptr<nn::ExpertBalance> balance_;  ///< of the same forward; null: no loss balances experts
};

/// Reads and shards a second model. weights: those in place of the config's, or null. Collective.
std::shared_ptr<const ShardedModel> build_second_model(const config::SecondModel& second,
                                                       const comm::Mesh& mesh,
                                                       shard::ParameterSource* weights = nullptr);

/// Makes the objective of training.objective, with its second model. weights: as above. Collective.
std::shared_ptr<Objective> make_objective(const config::Config& config, const comm::Mesh& mesh,
                                          shard::ParameterSource* weights = nullptr);

}  // namespace fsdp::train
