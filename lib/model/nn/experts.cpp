#include "model/nn/experts.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "base/util/error.h"
#include "base/util/hash.h"
#include "model/families/families.h"
#include "model/kernels/below_autograd.h"
#include "model/nn/parameter.h"

namespace fsdp::nn {
namespace {

using kernels::BelowAutograd;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Places of the rows of experts. Token n has the k rows n k to n k + k - 1; the rows of each expert follow
/// those of the one before, in the order of the tokens.
struct ExpertRows {
  at::Tensor of_experts;  ///< [N k]: which row of a token each row of the experts is
  at::Tensor of_tokens;   ///< [N, k]: which row of the experts each row of a token is

  explicit ExpertRows(const at::Tensor& chosen)
      : of_experts(std::get<1>(chosen.flatten().sort(/*stable=*/true, /*dim=*/0, /*descending=*/false))),
        of_tokens(at::empty_like(of_experts)
                      .scatter_(0, of_experts, at::arange(of_experts.numel(), of_experts.options()))
                      .view(chosen.sizes())) {}
  ExpertRows(const at::Tensor& of_experts, const at::Tensor& of_tokens)
      : of_experts(of_experts), of_tokens(of_tokens) {}

  at::Tensor tokens_of_experts() const { return of_experts.div(of_tokens.size(1), "floor"); }
};

/// Sums the rows of each token, times `weights` [N, k] if they are defined, in fp32, and rounds to the
/// rows' type. rows: [N k, D], in the order of the experts -> [N, D]
at::Tensor sum_of_rows(const at::Tensor& rows, const at::Tensor& of_tokens, const at::Tensor& weights) {
  at::Tensor sum;
  for (int64_t i = 0; i < of_tokens.size(1); ++i) {
    at::Tensor part = rows.index_select(0, of_tokens.select(1, i)).to(at::kFloat);
    if (weights.defined()) part.mul_(weights.select(1, i).unsqueeze(1));
    sum = sum.defined() ? sum.add_(part) : part;
  }
  return sum.to(rows.scalar_type());
}

/// The rows of tokens, in the order of the experts. x: [N, D] -> [N k, D]
class RowsOfExperts final : public torch::autograd::Function<RowsOfExperts> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const ExpertRows& places) {
    const BelowAutograd below;
    context->save_for_backward({places.of_tokens});
    return x.index_select(0, places.tokens_of_experts());
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const BelowAutograd below;
    return {sum_of_rows(gradients[0], context->get_saved_variables()[0], {}), {}};
  }
};

/// Weighted sum of the results of each token's experts. rows: [N k, D], weights: [N, k] fp32 -> [N, D]
class SumOfExperts final : public torch::autograd::Function<SumOfExperts> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows, const at::Tensor& weights,
                            const ExpertRows& places) {
    const BelowAutograd below;
    context->save_for_backward({rows, weights, places.of_experts, places.of_tokens});
    return sum_of_rows(rows, places.of_tokens, weights);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const BelowAutograd below;
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &rows = saved[0], &weights = saved[1], &dy = gradients[0];
    const ExpertRows places(saved[2], saved[3]);
    at::Tensor drows, dweights;
    if (context->needs_input_grad(0)) {
      const at::Tensor of_rows = weights.flatten().index_select(0, places.of_experts).unsqueeze(1);
      drows = dy.index_select(0, places.tokens_of_experts()).mul_(of_rows.to(dy.scalar_type()));
    }
    if (context->needs_input_grad(1)) {
      dweights = at::empty_like(weights);
      for (int64_t i = 0; i < weights.size(1); ++i) {
        const at::Tensor of_token = rows.index_select(0, places.of_tokens.select(1, i));
        dweights.select(1, i).copy_(of_token.mul_(dy).sum(-1, /*keepdim=*/false, at::kFloat));
      }
    }
    return {drows, dweights, {}};
  }
};

/// Tokens of each expert. Meta tensors have no numbers: there all experts have equally many.
std::vector<int64_t> on_host(const at::Tensor& assignments, int64_t all) {
  const int64_t experts = assignments.numel();
  if (assignments.is_meta()) {
    std::vector<int64_t> counts(static_cast<size_t>(experts), all / experts);
    for (int64_t i = 0; i < all % experts; ++i) ++counts[static_cast<size_t>(i)];
    return counts;
  }
  const at::Tensor counts = assignments.cpu();
  const int64_t* first = counts.const_data_ptr<int64_t>();
  return {first, first + experts};
}

/// Context of experts instead of that of whole rows: the dropout of their adapters depends on the number of
/// the row in the expert.
StageContext context_of_experts(const StageContext& context) {
  StageContext inner = context;
  inner.tokens = {};
  if (inner.dropout) {
    const auto first = static_cast<uint64_t>(context.dropout->first_row),
               token = static_cast<uint64_t>(context.tokens.begins[0]);
    inner.dropout =
        DropoutChoice{.key = util::mix64(context.dropout->key ^ util::mix64(util::mix64(first) + token))};
  }
  return inner;
}

}  // namespace

ExpertBalance::ExpertBalance(double coefficient, const at::Tensor& is_token)
    : state_(std::make_shared<BalanceState>(BalanceState{.coefficient = coefficient})) {
  if (is_token.defined()) state_->counts = is_token.flatten().to(at::kDouble);
}

void ExpertBalance::note(const at::Tensor& probabilities, const at::Tensor& chosen,
                         const at::Tensor& assignments) {
  BalanceState& state = *state_;
  if (!state.has_ended) {
    const at::NoGradGuard no_grad;
    const at::Tensor p = probabilities.detach(), &counts = state.counts;
    const at::TensorOptions numbers = p.options().dtype(at::kDouble);
    at::Tensor sum, assigned, tokens;
    if (counts.defined()) {
      FSDP_CHECK(counts.numel() == p.size(0), counts.numel(), " and ", p.size(0));
      sum = (p * counts.unsqueeze(1)).sum(0);
      assigned = at::zeros({p.size(1)}, numbers)
                     .scatter_add_(0, chosen.flatten(), counts.unsqueeze(1).expand_as(chosen).flatten());
      tokens = counts.sum();
    } else {
      sum = p.sum(0, /*keepdim=*/false, at::kDouble);
      assigned = assignments.to(at::kDouble);
      tokens = at::full({}, static_cast<double>(p.size(0)), numbers);
    }
    const bool is_first = !state.tokens.defined();
    state.probabilities = is_first ? sum : state.probabilities + sum;
    state.assignments = is_first ? assigned : state.assignments + assigned;
    state.tokens = is_first ? tokens : state.tokens + tokens;
  }
  if (!probabilities.requires_grad()) return;
  probabilities.register_hook([shared = state_](const at::Tensor& gradient) {
    return shared->gradient.defined() ? gradient + shared->gradient_of_rows() : gradient;
  });
}

at::Tensor ExpertBalance::BalanceState::gradient_of_rows() const {
  const auto experts = static_cast<double>(assignments.numel());
  const at::Tensor of_token = assignments * (gradient * experts / tokens.clamp_min(1).square());
  return (counts.defined() ? counts.unsqueeze(1) * of_token : of_token.unsqueeze(0)).to(at::kFloat);
}

at::Tensor ExpertBalance::value() const {
  const auto experts = static_cast<double>(state_->assignments.numel());
  return (state_->assignments * state_->probabilities).sum() *
         (experts / state_->tokens.clamp_min(1).square());
}

at::Tensor ExpertBalance::added_to(const at::Tensor& loss) {
  state_->has_ended = true;
  if (!state_->tokens.defined()) return loss;
  const at::Tensor total = loss + (value() * state_->coefficient).to(loss.scalar_type());
  if (total.requires_grad()) {
    total.register_hook([shared = state_](const at::Tensor& gradient) {
      shared->gradient = gradient.to(at::kDouble) * shared->coefficient;
    });
  }
  return total;
}

/// Not a Linear: it is neither a target of adapters nor quantised nor computed in 8 bits.
class ExpertFeedForward::Router final : public torch::nn::Module {
 public:
  Router(int64_t hidden, int64_t experts, const Compute& compute) : compute_(compute) {
    weight_ = register_parameter("weight", empty_parameter({experts, hidden}));
  }
  /// x: [N, hidden] -> [N, experts] fp32
  at::Tensor probabilities(const at::Tensor& x) const {
    return at::softmax(kernels::linear(x.to(weight_.scalar_type()), weight_, compute_.matmul), -1,
                       at::kFloat);
  }
  int64_t experts() const { return weight_.size(0); }

 private:
  at::Tensor weight_;
  Compute compute_;
};

ExpertFeedForward::ExpertFeedForward(const ModelOptions& options)
    : chosen_(options.num_experts_per_tok),
      renormalizes_(options.norm_topk_prob || family_of(options).renormalizes) {
  const Family& family = family_of(options);
  router_ = register_module(
      family.router, std::make_shared<Router>(options.hidden_size, options.num_experts, Compute(options)));
  experts_ = register_module(family.experts, std::make_shared<StageList>());
  for (int64_t i = 0; i < options.num_experts; ++i) {
    experts_->append(std::make_shared<FeedForward>(options, expert_width(options), "expert"));
  }
}

std::vector<std::string> ExpertFeedForward::recomputable() const {
  return (*experts_->begin())->recomputable();
}

void ExpertFeedForward::recompute(const std::vector<std::string>& operations) {
  for (const auto& expert : *experts_) expert->recompute(operations);
}

at::Tensor ExpertFeedForward::compute(const at::Tensor& x, const StageContext& context) {
  const at::Tensor rows = x.reshape({-1, x.size(-1)});
  const at::Tensor probabilities = router_->probabilities(rows);
  auto [weights, chosen] = at::topk(probabilities, chosen_);
  if (renormalizes_) weights = weights / weights.sum(-1, /*keepdim=*/true);
  const at::Tensor flat = chosen.flatten();
  const at::Tensor assignments =
      at::zeros({router_->experts()}, flat.options()).scatter_add_(0, flat, at::ones_like(flat));
  if (context.balance) context.balance->note(probabilities, chosen, assignments);
  const ExpertRows places(chosen);
  const std::vector<at::Tensor> parts =
      RowsOfExperts::apply(rows, places).split_with_sizes(on_host(assignments, flat.numel()));
  const StageContext inner = context_of_experts(context);
  std::vector<at::Tensor> results;
  for (const auto& expert : *experts_) {
    const at::Tensor& part = parts[results.size()];
    const bool runs = part.size(0) > 0 || at::GradMode::is_enabled() || expert->has_hooks();
    results.push_back(runs ? expert->forward(part, inner) : part);
  }
  return SumOfExperts::apply(at::cat(results), weights, places).view(x.sizes());
}

}  // namespace fsdp::nn
