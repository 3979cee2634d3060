// What training.reproducible = "world_size" cannot be combined with: whose sums would depend on the number of
// ranks, or on how samples are shared out to them.

#include <cmath>
#include <utility>

#include "base/util/error.h"
#include "model/families/architectures.h"
#include "model/families/families.h"
#include "setup/config/checks.h"
#include "state/groups/parameter_groups.h"

namespace fsdp::config {
namespace {

class Refusals {
 public:
  /// `key` must be `expected`, for it has `found` and that would be the reason.
  template <typename Expected, typename Found>
  void unless(bool condition, const std::string& key, const Expected& expected, const Found& found,
              const std::string& reason) {
    if (condition) return;
    conflicts.push_back(
        {{key, "training.reproducible"},
         concat(key, " must be ", expected, " with training.reproducible = \"world_size\", because ", reason,
                ", but is ", found, "; leave one of the two out")});
  }

  std::vector<Conflict> conflicts;
};

void refuse_models(const Config& config, Refusals& refusals) {
  const nn::ModelOptions& model = config.model;
  const bool is_built_in = nn::is_built_in_architecture(model.architecture);
  refusals.unless(is_built_in, "model.architecture", "a built-in model", model.architecture,
                  "the sums of others are not known");
  if (!is_built_in) return;
  const nn::Family& family = nn::family_of(model);
  refusals.unless(!family.has_experts(), "model.architecture", "one without experts", model.architecture,
                  "their numbers of tokens depend on the micro-batch");
  // libtorch's activations compute the last few elements of a tensor differently.
  const bool is_fused = (family.gate.empty() && !family.joined_gate)
                            ? family.transposed
                            : !family.has("hidden_act") || model.hidden_act == nn::Activation::kSilu;
  refusals.unless(is_fused && !family.scaled_embeddings && model.final_logit_softcapping == 0,
                  "model.architecture", "one with SwiGLU, or gpt2", model.architecture,
                  "other activations depend on the size of the micro-batch");
  refusals.unless(model.attention_dropout == 0, "model.attention_dropout", 0, model.attention_dropout,
                  "weights of attention are then multiplied by libtorch");
}

void refuse_training(const Config& config, Refusals& refusals) {
  const TrainingOptions& training = config.training;
  refusals.unless(training.device != DeviceChoice::kCuda, "training.device", "\"cpu\" or \"auto\"",
                  "\"cuda\"", "sums on GPUs have another order");
  refusals.unless(training.fused_kernels, "training.fused_kernels", "true", "false",
                  "libtorch's sums depend on threads");
  refusals.unless(training.matmul == nn::MatmulChoice::kAuto || training.matmul == nn::MatmulChoice::kOneDnn,
                  "training.matmul", "\"auto\" or \"onednn\"", training.matmul,
                  "the products of others depend on the number of rows");
  refusals.unless(training.loss == nn::kCrossEntropy, "training.loss", nn::kCrossEntropy, training.loss,
                  "the sums of other losses are not known");
  refusals.unless(training.batch_warmup_steps == 0, "training.batch_warmup_steps", 0,
                  training.batch_warmup_steps, "the samples of its steps depend on the number of ranks");
  refusals.unless(!training.no_sync, "training.no_sync", "false", "true",
                  "each micro-batch is reduced apart");
  refusals.unless(training.norm_type == 2 || std::isinf(training.norm_type), "training.norm_type", "2 or inf",
                  training.norm_type, "other powers are not exact");
  refusals.unless(training.float8 == Float8Recipe::kNone, "training.float8", "\"none\"", training.float8,
                  "its scales are those of the micro-batch");
  refusals.unless(config.lora.rank == 0, "lora.rank", 0, config.lora.rank,
                  "adapters are not summed by sample");
  refusals.unless(!config.evaluation.accuracy, "evaluation.accuracy", "false", "true",
                  "libtorch computes the loss then");
  const optim::OptimizerTraits* traits = optim::optimizer_traits().find(config.optimizer.name);
  refusals.unless(traits == nullptr || traits->updates_alone, "optimizer.name",
                  "an optimizer of single elements", config.optimizer.name,
                  "its sums over tensors depend on how these are cut");
  refusals.unless(config.optimizer.state_dtype != optim::StateType::kInt8, "optimizer.state_dtype",
                  "\"float32\" or \"bfloat16\"", "\"int8\"",
                  "the parts of a block on two ranks have scales of their own");
}

void refuse_sharding(const Config& config, Refusals& refusals) {
  const shard::ShardOptions& fsdp = config.fsdp;
  using util::FloatType;
  const auto& precision = config.mixed_precision.param_dtype;
  refusals.unless(precision != FloatType::kFloat16, "mixed_precision.param_dtype", "float32 or bfloat16",
                  precision, "a loss scale follows the ranks' overflows");
  refusals.unless(config.mixed_precision.reduce_dtype == FloatType::kFloat32, "mixed_precision.reduce_dtype",
                  "float32", config.mixed_precision.reduce_dtype,
                  "sums over ranks would be rounded once more for some numbers of ranks");
  refusals.unless(fsdp.hybrid_optimizer == shard::HybridOptimizer::kReplicated, "fsdp.hybrid_optimizer",
                  "\"replicated\"", fsdp.hybrid_optimizer, "its second reduce-scatter is not one of nodes");
  refusals.unless(fsdp.gradient_predivide_factor == 0, "fsdp.gradient_predivide_factor", 0,
                  fsdp.gradient_predivide_factor, "gradients are sums");
  refusals.unless(config.mesh.context == 1, "mesh.context", 1, config.mesh.context,
                  "a sample then has several ranks");
  refusals.unless(config.mesh.model == 1, "mesh.model", 1, config.mesh.model,
                  "a sample then has several ranks");
}

}  // namespace

std::vector<Conflict> find_conflicts_of_reproducible(const Config& config) {
  Refusals refusals;
  if (config.training.reproducible != Reproducible::kWorldSize) return {};
  refuse_models(config, refusals);
  refuse_training(config, refusals);
  refuse_sharding(config, refusals);
  return std::move(refusals.conflicts);
}

}  // namespace fsdp::config
