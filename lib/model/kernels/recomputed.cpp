#include "model/kernels/recomputed.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "base/tensor/autograd_node.h"
#include "base/util/error.h"
#include "model/kernels/below_autograd.h"

namespace fsdp::kernels {
namespace {

/// Base class of notes about a node's results, kept in the graph. Nothing happens when the node has run.
class ResultNote : public torch::autograd::FunctionPostHook {
 public:
  variable_list operator()(const variable_list& gradients, const variable_list&) override {
    return gradients;
  }
};

/// Computes a node's results again. They exist until all functions that need one have run their backward.
class Remaker final : public ResultNote {
 public:
  explicit Remaker(MakeAgain make) : make_(std::move(make)) {}

  void add_user() { ++users_; }
  at::Tensor result(size_t number, OperandUse use, const at::Tensor& gradient) {
    // If there are several users, each knows only a part of the gradient.
    if (results_.empty()) results_ = make_(users_ == 1 ? gradient : at::Tensor());
    const at::Tensor result = results_.at(number);
    if (use == OperandUse::kBackward && ++done_ == users_) {
      results_.clear();
      done_ = 0;
    }
    return result;
  }

  bool is_open = true;  ///< whether more users may be added

 private:
  MakeAgain make_;
  variable_list results_;
  int64_t users_ = 0, done_ = 0;
};

/// A tensor as a part of a node's result. Nodes that need the result keep the node alive by edges to it.
struct ResultSource {
  util::WeakNodePtr node = util::WeakNodePtr(util::NodePtr());
  Remaker* remaker = nullptr;
  size_t number = 0;
  std::vector<int64_t> sizes = {}, strides = {};
  int64_t offset = 0;     ///< elements after the result's first element
  bool is_whole = false;  ///< whether it is the result itself, so that its gradient is the operand's

  at::Tensor get(OperandUse use, const at::Tensor& gradient) const {
    FSDP_CHECK(!node.expired());
    const at::Tensor result = remaker->result(number, use, is_whole ? gradient : at::Tensor());
    return sizes == result.sizes() && strides == result.strides() && offset == 0
               ? result
               : strided_view(result, sizes, strides, offset);
  }
};

/// Sources of a node's results that equal results of others.
class EqualResults final : public ResultNote {
 public:
  std::map<size_t, ResultSource> sources;
};

template <typename Note>
Note* note_of(const util::NodePtr& node) {
  if (!node) return nullptr;
  for (const auto& hook : node->post_hooks()) {
    if (auto* note = dynamic_cast<Note*>(hook.get())) return note;
  }
  return nullptr;
}

std::optional<ResultSource> source_of(const at::Tensor& x) {
  if (!x.defined() || !x.requires_grad()) return std::nullopt;
  const at::TensorBase whole = x.is_view() ? x._base() : x;
  const util::NodePtr& node = whole.grad_fn();
  ResultSource source;
  if (auto* remaker = note_of<Remaker>(node)) {
    source.node = util::WeakNodePtr(node);
    source.remaker = remaker;
    source.number = static_cast<size_t>(whole.output_nr());
    source.is_whole = !x.is_view();
  } else if (auto* equal = note_of<EqualResults>(node)) {
    const auto found = equal->sources.find(static_cast<size_t>(whole.output_nr()));
    if (found == equal->sources.end()) return std::nullopt;
    source = found->second;
  } else {
    return std::nullopt;
  }
  if (!source.remaker->is_open) return std::nullopt;
  source.sizes = x.sizes().vec();
  source.strides = x.strides().vec();
  source.offset += x.storage_offset() - whole.storage_offset();
  return source;
}

constexpr const char *kSources = "sources", *kGradient = "gradient", *kOwnGradients = "own gradients";

struct Sources final : torch::CustomClassHolder {
  struct InSlot {
    size_t slot;
    ResultSource source;
    bool is_own;  ///< whether it is a result of the function itself
  };
  std::vector<InSlot> by_slot;
};

void put_into(size_t slot, ResultSource source, AutogradContext& context, bool is_own = false) {
  c10::IValue& sources = context.saved_data[kSources];
  if (sources.isNone()) sources = c10::IValue::make_capsule(c10::make_intrusive<Sources>());
  source.remaker->add_user();
  static_cast<Sources&>(*sources.toCapsule())
      .by_slot.push_back({.slot = slot, .source = std::move(source), .is_own = is_own});
}

/// Returns the Sources; null if there are none.
c10::intrusive_ptr<torch::CustomClassHolder> sources_of(AutogradContext& context) {
  const auto found = context.saved_data.find(kSources);
  return found == context.saved_data.end() ? nullptr : found->second.toCapsule();
}

}  // namespace

void save_operands(AutogradContext& context, variable_list saved, std::initializer_list<Operand> operands) {
  for (const auto& [slot, given] : operands) {
    if (!saved[slot].defined()) continue;
    auto source = source_of(given);
    if (!source) continue;
    saved[slot] = at::Tensor();
    put_into(slot, *std::move(source), context);
  }
  context.save_for_backward(std::move(saved));
}

variable_list operands_of(AutogradContext& context, OperandUse use, const at::Tensor& gradient) {
  variable_list saved = context.get_saved_variables();
  const auto capsule = sources_of(context);
  if (!capsule) return saved;
  for (const auto& [slot, source, is_own] : static_cast<const Sources&>(*capsule).by_slot) {
    if (!is_own || use == OperandUse::kBackward) saved[slot] = source.get(use, gradient);
  }
  return saved;
}

bool is_computed_again(AutogradContext& context, size_t slot) {
  const auto capsule = sources_of(context);
  if (!capsule) return false;
  const auto& sources = static_cast<const Sources&>(*capsule).by_slot;
  return std::any_of(sources.begin(), sources.end(), [&](const auto& each) { return each.slot == slot; });
}

void keep_gradients(AutogradContext& context, const at::Tensor& gradient, variable_list own) {
  context.saved_data[kGradient] = gradient;
  context.saved_data[kOwnGradients] = std::move(own);
}

variable_list take_kept_gradients(AutogradContext& context, const at::Tensor& gradient) {
  const auto kept = context.saved_data.find(kGradient);
  if (kept == context.saved_data.end()) return {};
  const bool is_same = kept->second.toTensor().is_same(gradient);
  variable_list own = context.saved_data[kOwnGradients].toTensorVector();
  context.saved_data.erase(kGradient);
  context.saved_data.erase(kOwnGradients);
  return is_same ? own : variable_list();
}

bool is_recomputed(const at::Tensor& x) { return source_of(x).has_value(); }

void recompute_results_by(const at::Tensor& output, MakeAgain make) {
  const util::NodePtr& node = output.grad_fn();
  if (node) node->add_post_hook(std::make_unique<Remaker>(std::move(make)));
}

void save_own_result(AutogradContext& context, size_t slot, const at::Tensor& output) {
  if (auto source = source_of(output)) put_into(slot, *std::move(source), context, /*is_own=*/true);
}

void keep_result(const at::Tensor& x) {
  if (const auto source = source_of(x)) source->remaker->is_open = false;
}

void recompute_as(const at::Tensor& to, const at::Tensor& from) {
  auto source = source_of(from);
  const util::NodePtr& node = to.grad_fn();
  if (!source || !node) return;
  auto* equal = note_of<EqualResults>(node);
  if (equal == nullptr) {
    node->add_post_hook(std::make_unique<EqualResults>());
    equal = note_of<EqualResults>(node);
  }
  equal->sources[static_cast<size_t>(to.output_nr())] = *std::move(source);
}

}  // namespace fsdp::kernels
