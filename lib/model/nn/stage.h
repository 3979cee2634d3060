#pragma once

// Stage: a module to which hooks can be attached.
//
// C++ modules have no forward hooks, so what sharding, activation checkpointing and tracing need is built
// into the models: a Stage's public forward() is not virtual and runs the attached hooks, outermost first,
// around the virtual compute(). A hook changes when memory is allocated and what autograd records, never the
// result.

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/kernels/fused.h"
#include "model/kernels/linear_divergence.h"
#include "model/nn/hooked.h"

namespace fsdp::parallel {
struct CutSequence;
}

namespace fsdp::nn {

class KeyValueCache;
class ExpertBalance;

/// What determines the values that a training step drops (dropout() in model/kernels/fused.h).
struct DropoutChoice {
  uint64_t key = 0;       ///< of the run
  int64_t first_row = 0;  ///< the number of the batch's first row in the run
};

/// For each row of a batch, the positions where documents begin: ascending, 0 first.
using DocumentStarts = std::vector<std::vector<int64_t>>;

/// A teacher's distributions, and the loss by which a student learns them in one forward pass.
struct Lesson {
  kernels::TeacherRows teacher;  ///< of all tokens of the batch, row after row
  kernels::DivergenceTerms terms;
};

/// Request for the likeliest tokens of a teacher.
struct LikeliestTokens {
  int64_t count = 0;  ///< tokens of each row
  double temperature = 1;
  kernels::TeacherRows found = {};
};

/// What the stages of one forward pass share besides the hidden states.
struct StageContext {
  at::Tensor rotary_cos = {};  ///< [T, rotary_width()], undefined for models without rotary positions
  at::Tensor rotary_sin = {};  ///< [T, head_dim]
  /// Of the layers with a window, in models that have other angles there.
  at::Tensor local_rotary_cos = {}, local_rotary_sin = {};
  /// [B, T] int64: what the head is to predict. If defined, a model of lib/model/nn returns the mean loss
  /// instead of its scores, so that these need not exist all at once.
  at::Tensor targets = {};
  kernels::LossTerms loss_terms = {};  ///< of that loss
  /// Whether a model with targets returns their log-probabilities, [B, T] fp32, 0 where a target is ignored,
  /// instead of the loss.
  bool wants_log_probs = false;
  /// Receiver of whether no token is likelier than the target, [B, T] bool, beside them. Null: nobody asks.
  std::shared_ptr<at::Tensor> is_greedy = nullptr;
  /// Lesson of a student: a model with targets returns the loss of each token, [B, T] fp32
  /// (kernels::linear_divergence()). Null: it does not learn from a teacher.
  std::shared_ptr<const Lesson> lesson = nullptr;
  /// Receiver of the likeliest tokens, in place of scores. Null: nobody asks.
  std::shared_ptr<LikeliestTokens> likeliest = nullptr;
  std::optional<DropoutChoice> dropout = std::nullopt;  ///< nothing: no dropout (inference)
  /// Attention stays inside documents, and learned positions restart at each. Null: a row is one document.
  std::shared_ptr<const DocumentStarts> documents = nullptr;
  /// document_bounds() of these on the device, for all layers; undefined: attention makes its own. Without
  /// `documents`: those of documents that the host does not know, for graphs (model/nn/stage_graphs.h).
  at::Tensor document_bounds = {};
  /// The model gets this rank's part of each row, and its ids and targets likewise; `documents` are those of
  /// whole rows. Null: rows are whole.
  std::shared_ptr<const parallel::CutSequence> cut = nullptr;
  int64_t layer = 0;  ///< which block of the model this is
  /// Which tokens of whole rows blocks work on, where these are cut over several ranks.
  kernels::RowPieces tokens = {};
  /// Keys and values of earlier tokens (model/nn/key_value_cache.h), without autograd; or null.
  KeyValueCache* cache = nullptr;
  /// Layers of experts tell it how they have routed (model/nn/experts.h); null: no loss balances them.
  std::shared_ptr<ExpertBalance> balance = nullptr;
  /// Whether layers compute without their adapters (model/nn/lora.h).
  bool without_adapters = false;
  bool only_last = false;  ///< a model returns the last token's scores only: [B, 1, vocab_size]
};

/// The name of CallHook for hooks that implement around().
using StageHook = CallHook;

/// Runs the inner hooks and compute(). A copy may be kept and called again after around() has returned, for
/// instance in backward: it holds the context, the inner hooks as they were then, and the stage, if a
/// shared_ptr owns it; a stage that none owns must outlive the copy.
class CallHook::Next {
 public:
  Next() = default;  ///< of no stage
  at::Tensor operator()(const at::Tensor& input) const;
  /// The context that compute() will get.
  const StageContext& context() const;
  /// The same with another context.
  Next with(StageContext context) const;

 private:
  friend class Stage;
  struct Pass;
  Next(std::shared_ptr<const Pass> pass, size_t hook) : pass_(std::move(pass)), hook_(hook) {}

  std::shared_ptr<const Pass> pass_;
  size_t hook_ = 0;  ///< the next one
};

/// A module with hooks that takes one tensor and returns one.
/// Derive from it and implement compute(), or wrap an existing module in a StageAdaptor.
class Stage : public torch::nn::Module, public Hookable {
 public:
  /// Runs the hooks around compute(). Shapes are those of the derived stage.
  at::Tensor forward(const at::Tensor& input, const StageContext& context = {});

  void attach(std::shared_ptr<CallHook> hook) override;
  void replace(const CallHook& attached, std::shared_ptr<CallHook> hook) override;
  void detach_hooks() override { hooks_ = nullptr; }
  bool has_hooks() const { return hooks_ != nullptr; }

  /// The operations whose results backward can compute again (model/kernels/recomputed.h), by name.
  virtual std::vector<std::string> recomputable() const { return {}; }
  /// From now on, backward computes again the results of exactly these of recomputable().
  virtual void recompute(const std::vector<std::string>& /*operations*/) {}

 protected:
  virtual at::Tensor compute(const at::Tensor& input, const StageContext& context) = 0;

 private:
  friend class CallHook::Next;

  std::shared_ptr<const detail::Hooks>
      hooks_;  ///< null: none; passes share it, so it is replaced, not changed
};

/// Makes a stage from any module with `at::Tensor forward(at::Tensor)`. Parameters, buffers and children keep
/// their names: the adaptor registers them as its own, without a prefix.
template <typename Wrapped>
class StageAdaptor final : public Stage {
 public:
  explicit StageAdaptor(std::shared_ptr<Wrapped> module, std::string type_name = "module")
      : module_(std::move(module)), type_name_(std::move(type_name)) {
    for (const auto& parameter : module_->named_parameters(/*recurse=*/false)) {
      register_parameter(parameter.key(), parameter.value(), parameter.value().requires_grad());
    }
    for (const auto& buffer : module_->named_buffers(/*recurse=*/false)) {
      register_buffer(buffer.key(), buffer.value());
    }
    for (const auto& child : module_->named_children()) register_module(child.key(), child.value());
  }

  std::string type_name() const override { return type_name_; }

  const std::shared_ptr<Wrapped>& module() const { return module_; }
  /// Its members.
  Wrapped* operator->() const { return module_.get(); }
  /// Indexes the module, such as a Sequential.
  template <typename Index>
  decltype(auto) operator[](Index index) {
    return (*module_)[index];
  }

 protected:
  at::Tensor compute(const at::Tensor& input, const StageContext&) override {
    return module_->forward(input);
  }

 private:
  std::shared_ptr<Wrapped> module_;
  std::string type_name_;
};

/// Stages in order, as children "0", "1", ... (Hugging Face's ModuleList).
class StageList : public torch::nn::Module {
 public:
  void append(std::shared_ptr<Stage> stage) {
    register_module(std::to_string(stages_.size()), stage);
    stages_.push_back(std::move(stage));
  }
  auto begin() const { return stages_.begin(); }
  auto end() const { return stages_.end(); }
  size_t size() const { return stages_.size(); }

 private:
  std::vector<std::shared_ptr<Stage>> stages_;
};

/// The stages inside `root` whose type_name() is in `stage_types`, with their names, in the order of the
/// modules: outermost ones only, each once.
std::vector<std::pair<std::string, Stage*>> outermost_stages(Stage& root,
                                                             const std::vector<std::string>& stage_types);

}  // namespace fsdp::nn
