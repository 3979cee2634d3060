#include "model/nn/layers.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "base/util/hash.h"
#include "base/util/text.h"
#include "model/kernels/float8.h"
#include "model/kernels/fused.h"
#include "model/kernels/gelu_feed_forward.h"
#include "model/kernels/joined_linear.h"
#include "model/kernels/meta.h"
#include "model/kernels/sample_sums.h"
#include "model/nn/lora.h"
#include "model/nn/loss.h"
#include "model/nn/parallel_layers.h"
#include "model/nn/parameter.h"
#include "model/parallel/vocabulary.h"

namespace fsdp::nn {

at::Tensor ParallelForm::enter(const at::Tensor& x) const {
  if (!input) return x;
  if (sums) {
    const bool is_part = x.size(-1) != whole;
    return is_part ? x : parallel::redistribute(x, *input, parallel::Shard{-1}, ranks);
  }
  return entered ? entered->enter(x, *input, ranks) : parallel::enter_region(x, *input, ranks);
}

at::Tensor ParallelForm::leave(const at::Tensor& result) const {
  if (!output) return result;
  return sums ? parallel::leave_region(result, *output, ranks)
              : parallel::redistribute(result, parallel::Shard{-1}, *output, ranks);
}

Linear::Linear(int64_t in_features, int64_t out_features, const Compute& compute, const LinearForm& form)
    : compute_(compute),
      in_features_(in_features),
      out_features_(out_features),
      transposed_(form.transposed) {
  const int64_t rows = transposed_ ? in_features : out_features;
  weight_ = register_parameter("weight", empty_parameter({rows, in_features + out_features - rows}));
  if (form.biased || transposed_) bias_ = register_parameter("bias", empty_parameter({out_features}));
}

at::Tensor Linear::forward(const at::Tensor& given, const StageContext* context,
                           kernels::Addend* addend) const {
  if (addend != nullptr && is_plain_on_gpu(given) && (transposed_ || !bias_.defined())) {
    return transposed_ ? kernels::transposed_linear(given, weight_, bias_, compute_.matmul, recomputed_,
                                                    /*leaves_bias=*/false, addend)
                       : kernels::linear(given, weight_, compute_.matmul, recomputed_, addend);
  }
  if (adapter_in(context)) return with_bias(adapted_product(given, context));  // not parallel: see add_lora()
  const at::Tensor x = parallel_ ? parallel_->enter(given) : given;
  if (parallel_ && parallel_->sums) {
    return with_bias(parallel_->leave(product(x)));
  }
  const at::Tensor y = transposed_ ? transposed_product(x, bias_) : with_bias(product(x));
  return parallel_ ? parallel_->leave(y) : y;
}

at::Tensor Linear::forward_without_bias(const at::Tensor& x, const StageContext* context) const {
  if (adapter_in(context)) return adapted_product(x, context);
  return product(parallel_ ? parallel_->enter(x) : x);
}

at::Tensor Linear::forward_leaving_bias(const at::Tensor& x) const {
  if (!transposed_ || !is_plain_on_gpu(x)) return {};
  return kernels::transposed_linear(x, weight_, bias_, compute_.matmul, recomputed_, /*leaves_bias=*/true);
}

bool Linear::is_plain_on_gpu(const at::Tensor& x) const {
  return compute_.fused && !adapter_ && !parallel_ && !quantization_ && kernels::is_for_cuda(x) &&
         kernels::can_fuse(x) && x.numel() > 0 && !multiplies_float8(x) &&
         x.scalar_type() == (bias_.defined() ? bias_ : weight_).scalar_type() &&
         kernels::autocast_operand(x).is_same(x);
}

at::Tensor Linear::delta(const at::Tensor& x, const at::Tensor& base, const StageContext* context) const {
  return adapter_->delta(x, base, context, compute_.matmul,
                         [this](const at::Tensor& kept) { return product(kept); });
}

at::Tensor Linear::adapted(const at::Tensor& x, const at::Tensor& base, const StageContext* context) const {
  if (!adapter_in(context)) return base;
  const at::Tensor added = delta(x, base, context);
  return adapter_->has_magnitude() ? base + added : at::Tensor(base).add_(added);
}

kernels::AdaptedForm Linear::adapted_form() const {
  return {.quantization = quantization_,
          .transposed = transposed_,
          .scale = adapter_->scale(),
          .matmul = compute_.matmul};
}

kernels::AdaptedWeight Linear::adapted_weight() const { return {weight_, adapter_->a(), adapter_->b()}; }

bool Linear::adapts_at_once(const at::Tensor& x, const StageContext* context) const {
  return adapter_in(context) && adapter_->is_plain(context) && !multiplies_float8(x) &&
         kernels::can_adapt(x, adapted_weight(), adapted_form());
}

at::Tensor Linear::adapted_product(const at::Tensor& x, const StageContext* context) const {
  if (!adapts_at_once(x, context)) return adapted(x, product(x), context);
  return kernels::adapted_linears(x, {adapted_weight()}, adapted_form(), recomputed_)[0];
}

void Linear::quantize(kernels::Quantization form) {
  FSDP_CHECK(weight_.is_meta() && !weight_.requires_grad() && !parallel_);
  const int64_t bytes = kernels::quantized_bytes(form, weight_.numel());
  weight_.set_data(at::empty({bytes}, weight_.options().dtype(at::kByte)));
  quantization_ = form;
}

at::Tensor Linear::product(const at::Tensor& x) const {
  if (quantization_) {
    return kernels::quantized_linear(x, {weight_, out_features_, in_features_, *quantization_},
                                     compute_.matmul);
  }
  if (transposed_) return transposed_product(x, std::nullopt);
  return multiplies_float8(x) ? kernels::float8_linears(x, {weight_}, float8_way())[0]
                              : kernels::linear(x, weight_, compute_.matmul, recomputed_);
}

bool Linear::multiplies_float8(const at::Tensor& x) const {
  return float8_ && kernels::can_multiply_float8(x, weight_);
}

at::Tensor Linear::with_bias(const at::Tensor& product) const {
  if (!bias_.defined()) return product;
  const at::Tensor bias = bias_.to(product.scalar_type());
  return kernels::SampleSums::current() != nullptr ? kernels::add_bias(product, bias) : product + bias;
}

at::Tensor Linear::transposed_product(const at::Tensor& x, const std::optional<at::Tensor>& bias) const {
  if (quantization_) return bias ? product(x) + bias->to(x.scalar_type()) : product(x);
  if (!multiplies_float8(x)) {
    return kernels::transposed_linear(x, weight_, bias, compute_.matmul, recomputed_);
  }
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight_.size(1);
  return kernels::float8_transposed_linear(x.reshape({-1, weight_.size(0)}), weight_, bias, float8_way())
      .view(shape);
}

std::vector<at::Tensor> forward_all(const at::Tensor& x, std::initializer_list<const Linear*> layers,
                                    const StageContext* context) {
  if (std::all_of(layers.begin(), layers.end(),
                  [&](const Linear* layer) { return layer->adapts_at_once(x, context); })) {
    std::vector<kernels::AdaptedWeight> weights;
    for (const Linear* layer : layers) weights.push_back(layer->adapted_weight());
    std::vector<at::Tensor> results = kernels::adapted_linears(x, weights, (*layers.begin())->adapted_form(),
                                                               (*layers.begin())->recomputed_);
    for (size_t i = 0; i < results.size(); ++i) results[i] = layers.begin()[i]->with_bias(results[i]);
    return results;
  }
  const auto float8 = std::count_if(layers.begin(), layers.end(),
                                    [&](const Linear* layer) { return layer->multiplies_float8(x); });
  const bool together = std::none_of(layers.begin(), layers.end(), [](const Linear* layer) {
    return layer->redistributes() || layer->quantization_;
  });
  const bool alike = together && (float8 == 0 || float8 == std::ssize(layers));
  std::vector<at::Tensor> weights, results;
  for (const Linear* layer : layers) {
    alike ? weights.push_back(layer->weight_) : results.push_back(layer->forward(x, context));
  }
  if (!alike) return results;
  const Linear& first = **layers.begin();
  results = float8 > 0 ? kernels::float8_linears(x, weights, first.float8_way())
                       : kernels::linears(x, weights, first.compute_.matmul, first.recomputed_);
  for (size_t i = 0; i < results.size(); ++i) {
    const Linear& layer = *layers.begin()[i];
    results[i] = layer.with_bias(layer.adapted(x, results[i], context));
  }
  return results;
}

at::Tensor forward_joined(const at::Tensor& x, std::initializer_list<const Linear*> layers,
                          const StageContext* context) {
  const Linear& leading = **layers.begin();
  const bool in_float8 = leading.multiplies_float8(x);
  std::vector<at::Tensor> weights;
  for (const Linear* layer : layers) {
    if (!layer->compute_.fused || layer->bias_.defined() || layer->multiplies_float8(x) != in_float8 ||
        layer->redistributes() || layer->quantization_) {
      return {};
    }
    weights.push_back(layer->weight_);
  }
  if (!kernels::can_join(x, weights)) return {};
  const at::Tensor joined =
      in_float8 ? kernels::float8_joined_linear(x, weights, leading.float8_way())
                : kernels::joined_linear(x, weights, leading.compute_.matmul, leading.recomputed_);
  if (std::none_of(layers.begin(), layers.end(),
                   [&](const Linear* layer) { return layer->adapter_in(context) != nullptr; })) {
    return joined;
  }
  std::vector<at::Tensor> deltas;
  int64_t first = 0;
  for (const Linear* layer : layers) {
    const at::Tensor base = joined.narrow(-1, first, layer->weight_.size(0));
    deltas.push_back(layer->adapter_in(context) ? layer->delta(x, base, context) : at::zeros_like(base));
    first += base.size(-1);
  }
  return joined + at::cat(deltas, -1);
}

Float8Layers use_float8(torch::nn::Module& model, const std::vector<std::string>& exclude,
                        kernels::Float8Scaling scaling) {
  Float8Layers layers;
  for (const auto& item : model.named_modules(/*name_prefix=*/std::string(), /*include_self=*/false)) {
    auto* linear = dynamic_cast<Linear*>(item.value().get());
    if (linear == nullptr) continue;
    const bool excluded = util::matches_any(item.key() + ".weight", exclude);
    const bool fits = kernels::fits_float8(linear->weight().sizes());
    (excluded ? layers.excluded : fits ? layers.chosen : layers.unfit).push_back(item.key());
    linear->set_float8(!excluded && fits ? std::optional(scaling) : std::nullopt);
    layers.of_parts = layers.of_parts || linear->parallel();
  }
  return layers;
}

void quantize_frozen(torch::nn::Module& model, kernels::Quantization form) {
  for (const auto& module : model.modules(/*include_self=*/false)) {
    if (auto* linear = dynamic_cast<Linear*>(module.get())) linear->quantize(form);
  }
}

Norm::Norm(NormKind kind, int64_t size, double epsilon, const Compute& compute)
    : kind_(kind), epsilon_(epsilon), compute_(compute) {
  weight_ = register_parameter("weight", empty_parameter({size}));
  if (kind == NormKind::kLayer) bias_ = register_parameter("bias", empty_parameter({size}));
}

at::Tensor Norm::factors() const {
  return kind_ == NormKind::kRmsPlusOne ? weight_.to(at::kFloat) + 1 : weight_;
}

at::Tensor Norm::forward(const at::Tensor& x) const {
  const at::Tensor weight = factors();
  at::ScalarType type = weight.scalar_type();
  const at::Tensor input = x.to(type);
  const bool fused = compute_.fused && kernels::can_fuse(input);
  if (!bias_.defined()) {
    return (fused ? kernels::rms_norm(input, weight, epsilon_, recomputed_)
                  : at::rms_norm(input, weight.sizes(), weight, epsilon_))
        .to(x.scalar_type());
  }
  if (fused) return kernels::layer_norm(input, weight, bias_, epsilon_, recomputed_).to(x.scalar_type());
  // libtorch's CPU kernel sums the gradients of weight and bias in their own type, its CUDA kernel in fp32.
  if (kernels::is_for_cpu(x) && at::isReducedFloatingType(type)) type = at::kFloat;
  return at::layer_norm(x.to(type), weight.sizes(), weight.to(type), bias_.to(type), epsilon_)
      .to(x.scalar_type());
}

std::pair<at::Tensor, at::Tensor> Norm::forward_with(const at::Tensor& residual, const at::Tensor& x) const {
  const at::Tensor weight = factors();
  const at::ScalarType type = weight.scalar_type();
  if (compute_.fused && kernels::can_fuse(x) && x.scalar_type() == type && residual.scalar_type() == type) {
    return bias_.defined() ? kernels::add_layer_norm(residual, x, weight, bias_, epsilon_, recomputed_)
                           : kernels::add_rms_norm(residual, x, weight, epsilon_, recomputed_);
  }
  at::Tensor sum = residual + x;
  return {sum, forward(sum)};
}

std::pair<at::Tensor, at::Tensor> Norm::forward_beside(const at::Tensor& x) const {
  const at::Tensor weight = factors();
  if (!kernels::is_for_cuda(x) || !compute_.fused || !kernels::can_fuse(x) ||
      x.scalar_type() != weight.scalar_type()) {
    return {x, forward(x)};
  }
  return bias_.defined() ? kernels::layer_norm_beside(x, weight, bias_, epsilon_, recomputed_)
                         : kernels::rms_norm_beside(x, weight, epsilon_, recomputed_);
}

std::shared_ptr<Norm> make_norm(const ModelOptions& options, int64_t size) {
  const NormKind kind = family_of(options).norm;
  if (kind == NormKind::kLayer) {
    return std::make_shared<LayerNorm>(size, options.layer_norm_epsilon, Compute(options));
  }
  return std::make_shared<RmsNorm>(size, options.rms_norm_eps, Compute(options), kind);
}

at::Tensor dropout(const at::Tensor& x, double p, DropoutPlace place, const StageContext& context,
                   const kernels::RowPieces& pieces) {
  const auto site = static_cast<uint64_t>(context.layer) * 8 + static_cast<uint64_t>(place);
  return dropout_at(x, p, site, context, pieces);
}

kernels::RowPieces values_of_tokens(const at::Tensor& x, const StageContext& context) {
  kernels::RowPieces values = context.tokens;
  for (int64_t& begin : values.begins) begin *= x.size(-1);
  return values;
}

at::Tensor dropout_at(const at::Tensor& x, double p, uint64_t site, const StageContext& context,
                      const kernels::RowPieces& pieces) {
  if (p == 0 || !context.dropout) return x;
  const uint64_t key = util::mix64(context.dropout->key ^ util::mix64(site));
  return kernels::dropout(x, p, key, context.dropout->first_row, pieces);
}

Embedding::Embedding(int64_t count, int64_t size, const Compute& compute) : compute_(compute) {
  weight_ = register_parameter("weight", empty_parameter({count, size}));
}

at::Tensor Embedding::compute(const at::Tensor& ids, const StageContext&) {
  if (parallel_) {
    return parallel_->leave(
        parallel::embedding_part(weight_, ids, parallel_->whole, compute_.fused, parallel_->ranks));
  }
  return compute_.fused ? kernels::embedding(weight_, ids) : at::embedding(weight_, ids);
}

Head::Head(int64_t hidden_size, int64_t vocab_size, const Compute& compute)
    : Head(empty_parameter({vocab_size, hidden_size}), compute) {}

Head::Head(const at::Tensor& embedding_weight, const Compute& compute) : compute_(compute) {
  weight_ = register_parameter("weight", embedding_weight);
}

at::Tensor Head::compute(const at::Tensor& input, const StageContext& context) {
  const at::Tensor& targets = context.targets;
  const at::Tensor operand = kernels::autocast_operand(input), weight = kernels::autocast_operand(weight_);
  const at::Tensor x = parallel_ ? parallel_->enter(operand) : operand;
  // Composed operations would need all logits, of which a parallel head has a part.
  const bool fuses = (compute_.fused || parallel_) && kernels::can_fuse(x);
  const bool by_rows = fuses && weight.scalar_type() == x.scalar_type();
  if (by_rows && (context.lesson || context.likeliest)) return compared(x, weight, context);
  if (targets.defined() && by_rows) {
    const at::Tensor rows = x.flatten(0, -2), tokens = targets.flatten();
    kernels::LossTerms terms = context.loss_terms;
    terms.logit_cap = cap_;
    terms.logits_bytes = compute_.logits_bytes;
    if (context.wants_log_probs) {
      const kernels::TokenLogProbs found =
          parallel_ ? parallel::linear_log_probs(rows, weight, tokens, parallel_->whole, compute_.matmul,
                                                 terms, parallel_->ranks)
                    : kernels::linear_log_probs(rows, weight, tokens, compute_.matmul, terms);
      if (context.is_greedy) *context.is_greedy = found.is_most.view(targets.sizes());
      return found.log_probs.view(targets.sizes());
    }
    return parallel_ ? parallel::linear_cross_entropy(rows, weight, tokens, parallel_->whole, compute_.matmul,
                                                      terms, parallel_->ranks)
                     : kernels::linear_cross_entropy(rows, weight, tokens, compute_.matmul, terms);
  }
  at::Tensor logits = kernels::linear(x, weight, compute_.matmul);
  if (cap_ > 0) logits = ((logits.to(at::kFloat) / cap_).tanh() * cap_).to(logits.scalar_type());
  if (parallel_) logits = parallel::gather_logits(logits, parallel_->whole, parallel_->ranks);
  if (context.likeliest) {
    context.likeliest->found = kernels::likeliest_tokens(logits.flatten(0, -2), context.likeliest->count,
                                                         context.likeliest->temperature);
    return context.likeliest->found.log_probs;
  }
  if (context.lesson) {
    const auto& [teacher, terms] = *context.lesson;
    return kernels::divergence_of_logits(logits.flatten(0, -2), targets.flatten(), teacher, terms)
        .view(targets.sizes());
  }
  if (targets.defined() && context.wants_log_probs)
    return log_probs_of(logits, targets, context.is_greedy.get());
  return targets.defined() ? next_token_loss(logits, targets, context.loss_terms) : logits;
}

at::Tensor Head::compared(const at::Tensor& x, const at::Tensor& weight, const StageContext& context) const {
  FSDP_CHECK(!parallel_, "a teacher or a student whose head is cut");
  const at::Tensor rows = x.flatten(0, -2);
  kernels::DivergenceTerms terms;
  if (context.lesson) terms = context.lesson->terms;
  terms.logit_cap = cap_;
  terms.logits_bytes = compute_.logits_bytes;
  if (context.likeliest) {
    terms.temperature = context.likeliest->temperature;
    context.likeliest->found =
        kernels::likeliest_tokens(rows, weight, context.likeliest->count, terms, compute_.matmul);
    return context.likeliest->found.log_probs;
  }
  const at::Tensor& targets = context.targets;
  return kernels::linear_divergence(rows, weight, targets.flatten(), context.lesson->teacher, terms,
                                    compute_.matmul)
      .view(targets.sizes());
}

FeedForward::FeedForward(const ModelOptions& options, int64_t inner, std::string type_name)
    : type_name_(std::move(type_name)),
      compute_(options),
      activation_(options.hidden_act),
      joined_(family_of(options).joined_gate) {
  const Family& family = family_of(options);
  const LinearForm form{.biased = has_feed_forward_bias(options), .transposed = family.transposed};
  const auto linear = [&](const std::string& name, int64_t in, int64_t out) {
    return register_module(name, std::make_shared<Linear>(in, out, compute_, form));
  };
  const int64_t hidden = options.hidden_size;
  if (!family.has("hidden_act")) activation_ = Activation::kGeluTanh;
  if (!family.gate.empty()) gate_ = linear(family.gate, hidden, inner);
  up_ = linear(family.up, hidden, joined_ ? 2 * inner : inner);
  down_ = linear(family.down, inner, hidden);
}

void FeedForward::recompute(const std::vector<std::string>& operations) {
  const auto is_one = [&](const char* name) { return std::ranges::count(operations, name) > 0; };
  up_->set_recomputed(is_one(kUp));
  if (gate_) gate_->set_recomputed(is_one(kUp));
  recomputes_activation_ = is_one(kActivation);
}

at::Tensor FeedForward::activated(const at::Tensor& x) const {
  switch (activation_) {
    case Activation::kSilu:
      return at::silu(x);
    case Activation::kGelu:
      return at::gelu(x);
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
  }
  FSDP_CHECK(false, "unknown activation");
}

at::Tensor FeedForward::run(const at::Tensor& x, const StageContext& given, kernels::Addend* addend) const {
  const StageContext* context = &given;
  if (!gate_ && !joined_) {
    if (!up_->is_transposed() || !compute_.fused || !kernels::can_fuse(x)) {
      return down_->forward(activated(up_->forward(x, context)), context, addend);
    }
    const kernels::GeluFeedForwardLayers layers{up_->weight(), up_->bias(), down_->weight(), down_->bias()};
    if (up_->is_plain_on_gpu(x) && down_->is_plain_on_gpu(x) && !up_->is_recomputed() &&
        !recomputes_activation_ && kernels::can_feed_forward(x, layers)) {
      return kernels::gelu_feed_forward(x, layers, compute_.matmul, addend);
    }
    const at::Tensor product = up_->forward_without_bias(x, context),
                     bias = up_->bias().to(product.scalar_type());
    return down_->forward(kernels::can_fuse(product)
                              ? kernels::bias_gelu(product, bias, recomputes_activation_)
                              : at::gelu(product + bias, "tanh"),
                          context, addend);
  }
  const bool is_silu = activation_ == Activation::kSilu;
  if (const at::Tensor joined =
          is_silu && gate_ ? forward_joined(x, {gate_.get(), up_.get()}, context) : at::Tensor();
      joined.defined()) {
    return down_->forward(kernels::joined_swiglu(joined, recomputes_activation_), context, addend);
  }
  const auto both = gate_ ? forward_all(x, {gate_.get(), up_.get()}, context)
                          : up_->forward(x, context).chunk(2, /*dim=*/-1);
  const at::Tensor &gate = both[0], &up = both[1];
  if (is_silu && compute_.fused && kernels::can_fuse(gate)) {
    return down_->forward(kernels::swiglu(gate, up, recomputes_activation_), context, addend);
  }
  return down_->forward(activated(gate) * up, context, addend);
}

}  // namespace fsdp::nn
