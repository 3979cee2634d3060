#pragma once

// Stage: a module to which hooks can be attached.
//
// C++ modules have no forward hooks, so the seam that sharding, activation checkpointing and tracing need is
// built into the models: a Stage's public forward() is not virtual and runs the attached hooks, outermost
// first, around the virtual compute(). A hook changes when memory is there and what autograd records,
// never the result.

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/fused.h"
#include "nn/hooked.h"

namespace fsdp::nn {

class KeyValueCache;

/// By what a training step chooses what it drops (kernels/dropout.h).
struct DropoutChoice {
  uint64_t key = 0;       ///< of the run
  int64_t first_row = 0;  ///< the number of the batch's first row among all of the run
};

/// Of each row of a batch where documents begin, in order, 0 first.
using DocumentStarts = std::vector<std::vector<int64_t>>;

/// What the stages of one forward pass share beside the hidden states.
struct StageContext {
  at::Tensor rotary_cos = {};  ///< [T, head_dim], undefined for models without rotary positions
  at::Tensor rotary_sin = {};  ///< [T, head_dim]
  /// [B, T] int64: what the head is to predict. With it, a model of lib/nn gives the mean loss for its
  /// scores, so that these need not exist all at once.
  at::Tensor targets = {};
  kernels::LossTerms loss_terms = {};                   ///< of that loss
  std::optional<DropoutChoice> dropout = std::nullopt;  ///< nothing: no dropout, as when a model is used
  /// Attention stays inside documents, and learned positions start again at each. Null: a row is one.
  std::shared_ptr<const DocumentStarts> documents = nullptr;
  int64_t layer = 0;  ///< which block of the model this is
  /// Without autograd: keys and values of the tokens before these (nn/key_value_cache.h), or null.
  KeyValueCache* cache = nullptr;
  bool only_last = false;  ///< a model gives scores of the last token alone: [B, 1, vocab_size]
};

class Stage;

/// Something that runs around a stage's compute().
class StageHook {
 public:
  class Next;

  virtual ~StageHook() = default;

  /// Returns what `next(input)` returns, or a tensor of equal value.
  virtual at::Tensor around(Stage& stage, const at::Tensor& input, const Next& next) = 0;
};

/// Runs the inner hooks and compute(). A copy may be kept and called again after around() has returned,
/// in backward for instance: it holds the context, the inner hooks as they were attached at the time, and
/// the stage, if a shared_ptr owns it; a stage that none owns must outlive the copy.
class StageHook::Next {
 public:
  Next() = default;  ///< of no stage
  at::Tensor operator()(const at::Tensor& input) const;
  /// What compute() will be given beside its input.
  const StageContext& context() const;

 private:
  friend class Stage;
  struct Pass;
  Next(std::shared_ptr<const Pass> pass, size_t hook) : pass_(std::move(pass)), hook_(hook) {}

  std::shared_ptr<const Pass> pass_;
  size_t hook_ = 0;  ///< the next one
};

/// A module with one tensor in and one tensor out that hooks can be attached to.
/// Derive from it and implement compute(), or put an existing module behind a StageAdaptor.
class Stage : public torch::nn::Module, public Hookable {
 public:
  /// Runs the hooks around compute(). Shapes are those of the derived stage.
  at::Tensor forward(const at::Tensor& input, const StageContext& context = {});

  /// Attaches a hook inside those that are attached already.
  void attach(std::shared_ptr<StageHook> hook);
  /// Of the hidden states that come in and go out.
  void attach(std::shared_ptr<CallHook> hook) override;
  void detach_hooks() override { hooks_ = nullptr; }

 protected:
  virtual at::Tensor compute(const at::Tensor& input, const StageContext& context) = 0;

 private:
  friend class StageHook::Next;
  using StageHooks = std::vector<std::shared_ptr<StageHook>>;

  std::shared_ptr<const StageHooks> hooks_;  ///< null: none; replaced as a whole, since passes share it
};

/// Makes a stage of any module with `at::Tensor forward(at::Tensor)`. Parameters, buffers and children keep
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

}  // namespace fsdp::nn
