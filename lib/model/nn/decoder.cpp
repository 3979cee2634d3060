#include "model/nn/decoder.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>

#include "base/util/error.h"
#include "base/util/text.h"
#include "model/families/families.h"
#include "model/families/option_rules.h"
#include "model/families/rotary_scaling.h"
#include "model/kernels/meta.h"
#include "model/kernels/product_choices.h"
#include "model/kernels/product_epilogues.h"
#include "model/kernels/sample_sums.h"
#include "model/nn/attention.h"
#include "model/nn/decoder_plan.h"
#include "model/nn/documents.h"
#include "model/nn/experts.h"
#include "model/nn/key_value_cache.h"
#include "model/nn/layers.h"
#include "model/nn/parallelize.h"
#include "model/nn/parameter.h"
#include "model/nn/rotary.h"
#include "model/parallel/cut_sequence.h"

namespace fsdp::nn {
namespace {

/// dropout() of the context's tokens. x: [B, T, D]
at::Tensor dropout_of_tokens(const at::Tensor& x, double p, DropoutPlace place, const StageContext& context) {
  return dropout(x, p, place, context, values_of_tokens(x, context));
}

/// x: [B, T, D] -> [B, T, D]. A block adds the result of attention to x, then that of the feed-forward to the
/// sum, or, with a parallel residual, both to x. Each layer may have a norm of its input and one of its
/// result.
class DecoderBlock final : public Stage {
 public:
  DecoderBlock(const ModelOptions& options, int64_t layer)
      : hidden_dropout_(options.hidden_dropout),
        multiplier_(options.residual_multiplier),
        is_parallel_(options.use_parallel_residual) {
    // In Hugging Face's order, which is that of the parameters.
    const Family& family = family_of(options);
    if (family.norms_come_first) add_norms(options);
    attention_ = register_module(family.attention, std::make_shared<Attention>(options, layer));
    feed_forward_ = register_module(family.feed_forward, make_feed_forward(options, layer));
    if (!family.norms_come_first) add_norms(options);
  }
  std::string type_name() const override { return "block"; }
  std::vector<std::string> recomputable() const override {
    std::vector<std::string> operations{kNorms};
    for (const Stage* stage : std::initializer_list<const Stage*>{attention_.get(), feed_forward_.get()}) {
      const std::vector<std::string> inner = stage->recomputable();
      operations.insert(operations.end(), inner.begin(), inner.end());
    }
    return operations;
  }
  void recompute(const std::vector<std::string>& operations) override {
    for (const auto& norm :
         {before_attention_, after_attention_, before_feed_forward_, after_feed_forward_}) {
      if (norm) norm->set_recomputed(std::ranges::count(operations, kNorms) > 0);
    }
    attention_->recompute(operations);
    feed_forward_->recompute(operations);
  }

 protected:
  at::Tensor compute(const at::Tensor& given, const StageContext& context) override {
    const auto normed = [](const std::shared_ptr<Norm>& norm, const at::Tensor& of) {
      return norm ? norm->forward(of) : of;
    };
    const auto result_of = [&](Stage& layer, const at::Tensor& input, DropoutPlace place,
                               const std::shared_ptr<Norm>& norm) {
      const at::Tensor output =
          dropout_of_tokens(layer.forward(input, context), hidden_dropout_, place, context);
      const at::Tensor result = normed(norm, output);
      return multiplier_ == 1 ? result : result * multiplier_;
    };
    const auto [x, attention_input] =
        before_attention_ ? before_attention_->forward_beside(given) : std::pair(given, given);
    // Where nothing else is done with a layer's result, its last product may add what the result is added to.
    const bool adds = kernels::product_choices(x.device()) != nullptr && !is_parallel_ && multiplier_ == 1 &&
                      (hidden_dropout_ == 0 || !context.dropout);
    kernels::Addend to_attention{.x = x, .is_in_another_pass = before_feed_forward_ != nullptr};
    const at::Tensor attention =
        adds && !after_attention_ && !attention_->has_hooks()
            ? attention_->forward_adding(attention_input, context, to_attention)
            : result_of(*attention_, attention_input, DropoutPlace::kAttentionOutput, after_attention_);
    const auto feed_forward = [&](const at::Tensor& input) {
      return result_of(*feed_forward_, input, DropoutPlace::kFeedForwardOutput, after_feed_forward_);
    };
    if (is_parallel_) return x + attention + feed_forward(normed(before_feed_forward_, x));
    const auto with_feed_forward = [&](const at::Tensor& attended, const at::Tensor& input) {
      auto* dense = adds && !after_feed_forward_ ? dynamic_cast<FeedForward*>(feed_forward_.get()) : nullptr;
      if (dense == nullptr || dense->has_hooks()) return attended + feed_forward(input);
      kernels::Addend to_result{.x = attended};
      const at::Tensor result = dense->forward_adding(input, context, to_result);
      return to_result.is_added ? result : attended + result;
    };
    if (!before_feed_forward_) {
      const at::Tensor attended = to_attention.is_added ? attention : x + attention;
      return with_feed_forward(attended, attended);
    }
    auto [attended, input] = to_attention.is_added ? before_feed_forward_->forward_beside(attention)
                                                   : before_feed_forward_->forward_with(x, attention);
    return with_feed_forward(attended, input);
  }

 private:
  static std::shared_ptr<Stage> make_feed_forward(const ModelOptions& options, int64_t layer) {
    if (is_expert_layer(options, layer)) return std::make_shared<ExpertFeedForward>(options);
    return std::make_shared<FeedForward>(options, options.intermediate_size);
  }
  void add_norms(const ModelOptions& options) {
    const Family& family = family_of(options);
    const auto add = [&](std::shared_ptr<Norm>& norm, const std::string& name) {
      if (!name.empty()) norm = register_module(name, make_norm(options, options.hidden_size));
    };
    add(before_attention_, family.norm_before_attention);
    add(after_attention_, family.norm_after_attention);
    add(before_feed_forward_, family.norm_before_feed_forward);
    add(after_feed_forward_, family.norm_after_feed_forward);
  }

  static constexpr const char* kNorms = "norms";

  double hidden_dropout_, multiplier_;  ///< multiplier_: factor of the layers' results
  bool is_parallel_;
  std::shared_ptr<Norm> before_attention_, after_attention_, before_feed_forward_, after_feed_forward_;
  std::shared_ptr<Attention> attention_;
  std::shared_ptr<Stage> feed_forward_;
};

/// The decoders of model/families/families.h.
class Decoder final : public Stage {
 public:
  explicit Decoder(const ModelOptions& options)
      : type_name_(options.architecture),
        max_positions_(options.max_position_embeddings),
        embedding_dropout_(options.embedding_dropout),
        embedding_multiplier_(options.embedding_multiplier),
        logits_divisor_(options.logits_scaling) {
    const Family& family = family_of(options);
    const Compute compute(options);
    const int64_t vocabulary = options.vocab_size, hidden = options.hidden_size;
    if (family.scaled_embeddings) embedding_scale_ = std::sqrt(static_cast<double>(hidden));
    auto inner = register_module(family.inner, std::make_shared<torch::nn::Module>());
    tokens_ = inner->register_module(family.tokens, std::make_shared<Embedding>(vocabulary, hidden, compute));
    if (!family.is_rotary()) {
      positions_ = inner->register_module(family.positions,
                                          std::make_shared<Embedding>(max_positions_, hidden, compute));
    }
    blocks_ = inner->register_module(family.blocks, std::make_shared<StageList>());
    for (int64_t i = 0; i < options.num_hidden_layers; ++i) {
      blocks_->append(std::make_shared<DecoderBlock>(options, i));
    }
    last_norm_ = inner->register_module(family.last_norm, make_norm(options, hidden));
    if (family.is_rotary()) {
      rotary_ = inner->register_module("rotary_emb", std::make_shared<RotaryTable>(options));
    }
    if (options.rope_local_base_freq > 0) {
      ModelOptions local = options;
      local.rope_theta = options.rope_local_base_freq;
      local.rope_type = RopeType::kDefault;
      local_rotary_ = inner->register_module("rotary_emb_local", std::make_shared<RotaryTable>(local));
    }
    head_ = register_module(family.head, options.tie_word_embeddings
                                             ? std::make_shared<Head>(tokens_->weight(), compute)
                                             : std::make_shared<Head>(hidden, vocabulary, compute));
    head_->set_cap(options.final_logit_softcapping);
  }
  std::string type_name() const override { return type_name_; }

 protected:
  /// Throws Error(kUsage) for learned positions if T > max_position_embeddings.
  at::Tensor compute(const at::Tensor& ids, const StageContext& given) override {
    const int64_t length = ids.size(1), whole = given.cut ? length * given.cut->degree : length;
    if (positions_ && whole > max_positions_) {
      fail(ErrorKind::kUsage, "a sequence of ", whole, " tokens is longer than the ", max_positions_,
           " positions of the model; raise model.max_position_embeddings or shorten data.sequence_length");
    }
    if (tokens_->parallel() && (given.cache != nullptr || given.only_last)) {
      fail(ErrorKind::kUsage, "expected a model on one rank for generation; found one whose layers ",
           tokens_->parallel()->ranks.count(),
           " ranks share; generate from its checkpoint with fsdp-generate");
    }
    KeyValueCache* cache = given.cache;
    if (cache != nullptr) cache->require_room(length);
    const int64_t first = cache != nullptr ? cache->length() : 0;
    StageContext context = given;
    FSDP_CHECK(!given.cut || cache == nullptr, "a cache of cut sequences");
    if (given.documents && !given.cut && kernels::is_for_cuda(ids)) {
      context.document_bounds = document_bounds(*given.documents, length, ids.device());
    }
    at::Tensor x;
    if (positions_) {
      at::Tensor positions = given.documents ? document_positions(*given.documents, whole, ids.device())
                                             : at::arange(first, first + whole, ids.options());
      // Then the gradient of each sample's positions can be computed apart.
      if (kernels::SampleSums::current() != nullptr) positions = positions.expand(ids.sizes());
      if (given.cut) positions = given.cut->part_of(positions, positions.dim() - 1);
      x = tokens_->forward(ids, context);
      x = x + positions_->forward(positions.narrow(-1, first_of_part(x.size(1), length), x.size(1)), context);
    } else {
      const auto angles = [&](RotaryTable& table) {
        if (!given.cut) {
          return cache != nullptr ? table.angles_from(first, length, first + length, ids.device())
                                  : table.angles(length, ids.device());
        }
        const int64_t chunk = length / 2;
        const auto [begin, end] = given.cut->chunks();
        const auto early = table.angles_from(begin * chunk, chunk, whole, ids.device()),
                   late = table.angles_from(end * chunk, chunk, whole, ids.device());
        return std::pair(at::cat({early.first, late.first}), at::cat({early.second, late.second}));
      };
      std::tie(context.rotary_cos, context.rotary_sin) = angles(*rotary_);
      if (local_rotary_) {
        std::tie(context.local_rotary_cos, context.local_rotary_sin) = angles(*local_rotary_);
      }
      x = tokens_->forward(ids, context);
    }
    if (embedding_scale_ != 1) {
      // Rounded as transformers rounds it.
      x = x * at::scalar_tensor(embedding_scale_, at::TensorOptions().dtype(x.scalar_type())).item<double>();
    }
    if (embedding_multiplier_ != 1) x = x * embedding_multiplier_;
    const int64_t first_here = first_of_part(x.size(1), length);
    context.tokens = given.cut ? given.cut->places(first_here, x.size(1), length)
                               : kernels::RowPieces{.begins = {first_here}};
    x = dropout_of_tokens(x, embedding_dropout_, DropoutPlace::kEmbedding, context);
    for (const auto& block : *blocks_) {
      x = block->forward(x, context);
      ++context.layer;
    }
    if (cache != nullptr) cache->advance(length);
    if (given.only_last) x = x.narrow(1, length - 1, 1);
    const at::Tensor normed = last_norm_->forward(x);
    return head_->forward(logits_divisor_ == 1 ? normed : normed / logits_divisor_, context);
  }

 private:
  /// First position of the part of the sequence that the embedding leaves.
  int64_t first_of_part(int64_t tokens, int64_t length) const {
    return tokens == length ? 0 : tokens_->parallel()->ranks.rank() * tokens;
  }

  std::string type_name_;
  int64_t max_positions_;
  double embedding_dropout_, embedding_scale_ = 1, embedding_multiplier_, logits_divisor_;
  std::shared_ptr<Embedding> tokens_, positions_;  ///< positions_: null with rotary ones
  std::shared_ptr<StageList> blocks_;
  std::shared_ptr<Norm> last_norm_;
  std::shared_ptr<Head> head_;
  std::shared_ptr<RotaryTable> rotary_;        ///< null with learned positions
  std::shared_ptr<RotaryTable> local_rotary_;  ///< angles of layers with a window; null if they have no other
};

void check_rotary(const ModelOptions& options) {
  if (options.rope_type == RopeType::kDefault && options.rope_factor != 1) {
    fail(ErrorKind::kUsage, "rope_factor ", options.rope_factor, " must be 1 with rope_type default");
  }
  if (const auto problem = find_rope_problem(options)) {
    fail(ErrorKind::kUsage, problem->option, " ", problem->must);
  }
}

void check_sizes(const ModelOptions& options) {
  if (options.vocab_size < 1 || options.hidden_size < 1 || options.intermediate_size < 1 ||
      options.num_hidden_layers < 1 || options.num_attention_heads < 1 || options.num_key_value_heads < 1 ||
      options.max_position_embeddings < 1) {
    fail(ErrorKind::kUsage, "every size of a model must be at least 1; check the model options");
  }
}

void check_heads(const ModelOptions& options) {
  if (options.head_dim == 0 && options.hidden_size % options.num_attention_heads != 0) {
    fail(ErrorKind::kUsage, "hidden_size ", options.hidden_size,
         " must be a multiple of num_attention_heads ", options.num_attention_heads);
  }
  if (options.num_attention_heads % key_value_heads(options) != 0) {
    fail(ErrorKind::kUsage, "num_attention_heads ", options.num_attention_heads,
         " must be a multiple of num_key_value_heads ", options.num_key_value_heads);
  }
  const int64_t rotary = rotary_width(options);
  if (family_of(options).is_rotary() && (rotary < 2 || rotary % 2 != 0 || rotary > head_width(options))) {
    fail(ErrorKind::kUsage, "the width of a head, ", head_width(options),
         options.partial_rotary_factor == 1 ? "" : ", times partial_rotary_factor",
         ", must be even for rotary positions");
  }
}

void check_experts(const ModelOptions& options) {
  const Family& family = family_of(options);
  if (!family.has_experts()) return;
  if (options.num_experts < 1) {
    fail(ErrorKind::kUsage, "num_experts must be at least 1 with ", options.architecture, ", but is ",
         options.num_experts, "; give it");
  }
  if (options.num_experts_per_tok < 1 || options.num_experts_per_tok > options.num_experts) {
    fail(ErrorKind::kUsage, "num_experts_per_tok must be from 1 to num_experts = ", options.num_experts,
         ", but is ", options.num_experts_per_tok, "; change one of the two");
  }
  if (expert_width(options) < 1) {
    fail(ErrorKind::kUsage, "moe_intermediate_size must be at least 1 with ", options.architecture,
         ", but is ", options.moe_intermediate_size, "; give it");
  }
  if (options.decoder_sparse_step < 1) {
    fail(ErrorKind::kUsage, "decoder_sparse_step must be at least 1, but is ", options.decoder_sparse_step,
         "; leave it out for experts in every layer");
  }
}

/// transformers scales the other angles alone.
void check_local_rotary(const ModelOptions& options) {
  const bool has_local = family_of(options).has("rope_local_base_freq") && options.sliding_window > 0;
  if (!has_local || options.rope_type == RopeType::kDefault || options.rope_local_base_freq > 0) return;
  fail(ErrorKind::kUsage, "rope_local_base_freq must be above 0 with rope_type ", options.rope_type,
       ", which scales the layers without a window alone; give it");
}

/// Options that the architecture does not have must have their defaults.
void check_options(const ModelOptions& options) {
  std::vector<std::string> foreign;
  for (const OptionRule& rule : option_rules()) {
    const bool is_foreign = rule.is_exclusive && !family_of(options).has(rule.name);
    if (is_foreign && !rule.is_equal(options, ModelOptions())) foreign.emplace_back(rule.name);
  }
  if (foreign.empty()) return;
  fail(ErrorKind::kUsage, util::join(foreign, ", "), foreign.size() > 1 ? " do" : " does", " not apply to ",
       options.architecture, "; leave ", foreign.size() > 1 ? "them" : "it", " out");
}

void check_built_in(const ModelOptions& options) {
  check_options(options);
  check_heads(options);
  if (family_of(options).is_rotary()) check_rotary(options);
  check_local_rotary(options);
  check_experts(options);
  if (model_type_of(options) == nullptr) {
    fail(ErrorKind::kUsage,
         "qkv_bias (Qwen2), sliding_window (Mistral), and attention_bias or mlp_bias (Llama) "
         "exclude each other, because no model family has more than one of them");
  }
}

/// The GPT-2 paper's initialization of layers whose results are added up, section 2.3.
double damped_deviation(const std::string& name, const ModelOptions& options) {
  if (!name.ends_with(family_of(options).damped)) return options.initializer_range;
  return options.initializer_range / std::sqrt(2.0 * static_cast<double>(options.num_hidden_layers));
}

std::shared_ptr<Stage> make_built_in(const ModelOptions& options) {
  return std::make_shared<Decoder>(options);
}

util::Registry<ModelKind>& kinds() {
  static util::Registry<ModelKind> kinds("model", [] {
    std::vector<util::Registry<ModelKind>::Named> built_in;
    for (const Family& family : families()) {
      ModelKind kind{.make = make_built_in, .check = check_built_in, .plan = decoder_plan};
      if (!family.damped.empty()) kind.deviation = damped_deviation;
      built_in.push_back({family.architecture, std::move(kind)});
    }
    return built_in;
  }());
  return kinds;
}

/// Moves the parameters that were not made by empty_parameter().
void move_parameters(torch::nn::Module& model, at::Device device) {
  for (at::Tensor& parameter : model.parameters()) {
    if (parameter.device().type() == device.type()) continue;
    const at::Tensor moved = at::empty_like(parameter, parameter.options().device(device));
    // set_data() accepts a tensor on meta only for a tensor that is already there.
    parameter.unsafeGetTensorImpl()->_change_backend_component_keys(device);
    parameter.set_data(moved);
  }
}

}  // namespace

void register_model(const std::string& name, Architecture architecture, ModelKind kind) {
  FSDP_CHECK(kind.make != nullptr, name);
  architectures().add(name, std::move(architecture));
  kinds().add(name, std::move(kind));
}

const ModelKind& model_kind(const std::string& architecture) {
  return kinds().get(architecture, "model architecture");
}

std::shared_ptr<Stage> make_decoder(const ModelOptions& options, at::Device device) {
  const ModelKind& kind = model_kind(options.architecture);
  check_sizes(options);
  if (kind.check) kind.check(options);
  ParameterDevice parameters_on(device);
  std::shared_ptr<Stage> model = kind.make(options);
  FSDP_CHECK(model != nullptr, options.architecture);
  move_parameters(*model, device);
  return model;
}

std::vector<ParameterPart> parallelize_decoder(Stage& decoder, const ModelOptions& options,
                                               const ParallelOptions& parallel,
                                               std::shared_ptr<comm::Communicator> group) {
  if (group->world_size() == 1) return {};
  const ModelKind& kind = model_kind(options.architecture);
  if (!kind.plan) {
    fail(ErrorKind::kUsage, "mesh.model must be 1 with model.architecture = \"", options.architecture,
         "\", whose plug-in gives no plan of its layers, but is ", group->world_size(),
         "; give the processes to mesh.data, or ModelKind a plan");
  }
  return parallelize(decoder, kind.plan(options, parallel), std::move(group));
}

int64_t count_parameters(const torch::nn::Module& module) {
  std::set<const void*> seen;
  int64_t count = 0;
  for (const at::Tensor& parameter : module.parameters()) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) count += parameter.numel();
  }
  return count;
}

}  // namespace fsdp::nn
