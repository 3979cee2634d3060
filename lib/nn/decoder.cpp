#include "nn/decoder.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>

#include <cmath>
#include <set>
#include <tuple>
#include <utility>

#include "kernels/meta.h"
#include "nn/attention.h"
#include "nn/decoder_plan.h"
#include "nn/documents.h"
#include "nn/key_value_cache.h"
#include "nn/layers.h"
#include "nn/parallelize.h"
#include "nn/parameter.h"
#include "nn/rotary.h"
#include "parallel/cut_sequence.h"
#include "util/error.h"

namespace fsdp::nn {
namespace {

std::shared_ptr<Norm> make_norm(const ModelOptions& options) {
  if (!is_gpt2(options)) {
    return std::make_shared<RmsNorm>(options.hidden_size, options.rms_norm_eps, Compute(options));
  }
  return std::make_shared<LayerNorm>(options.hidden_size, options.layer_norm_epsilon, Compute(options));
}

/// dropout() of the context's tokens. x: [B, T, D]
at::Tensor dropout_of_tokens(const at::Tensor& x, double p, DropoutPlace place, const StageContext& context) {
  return dropout(x, p, place, context, values_of_tokens(x, context));
}

/// x + attention(norm(x)), then x + feed_forward(norm(x)). x: [B, T, D] -> [B, T, D].
class Block final : public Stage {
 public:
  explicit Block(const ModelOptions& options) : hidden_dropout_(options.hidden_dropout) {
    // In Hugging Face's order, which is that of the parameters.
    if (is_gpt2(options)) {
      norm_1_ = register_module("ln_1", make_norm(options));
      attention_ = register_module("attn", std::make_shared<Attention>(options));
      norm_2_ = register_module("ln_2", make_norm(options));
      feed_forward_ = register_module("mlp", std::make_shared<FeedForward>(options));
    } else {
      attention_ = register_module("self_attn", std::make_shared<Attention>(options));
      feed_forward_ = register_module("mlp", std::make_shared<FeedForward>(options));
      norm_1_ = register_module("input_layernorm", make_norm(options));
      norm_2_ = register_module("post_attention_layernorm", make_norm(options));
    }
  }
  std::string type_name() const override { return "block"; }

 protected:
  at::Tensor compute(const at::Tensor& x, const StageContext& context) override {
    const at::Tensor attention = dropout_of_tokens(attention_->forward(norm_1_->forward(x), context),
                                                   hidden_dropout_, DropoutPlace::kAttentionOutput, context);
    auto [attended, normed] = norm_2_->forward_with(x, attention);
    return attended + dropout_of_tokens(feed_forward_->forward(normed, context), hidden_dropout_,
                                        DropoutPlace::kFeedForwardOutput, context);
  }

 private:
  double hidden_dropout_;
  std::shared_ptr<Norm> norm_1_, norm_2_;
  std::shared_ptr<Attention> attention_;
  std::shared_ptr<FeedForward> feed_forward_;
};

/// The decoders of Llama (Touvron et al.: LLaMA, 2023, section 2.2) and GPT-2 (Radford et al.: Language
/// Models are Unsupervised Multitask Learners, 2019, section 2.3).
class Decoder final : public Stage {
 public:
  explicit Decoder(const ModelOptions& options)
      : type_name_(options.architecture),
        max_positions_(options.max_position_embeddings),
        embedding_dropout_(options.embedding_dropout) {
    const bool gpt2 = is_gpt2(options);
    const Compute compute(options);
    const int64_t vocabulary = options.vocab_size, hidden = options.hidden_size;
    auto inner = register_module(gpt2 ? "transformer" : "model", std::make_shared<torch::nn::Module>());
    tokens_ = inner->register_module(gpt2 ? "wte" : "embed_tokens",
                                     std::make_shared<Embedding>(vocabulary, hidden, compute));
    if (gpt2) {
      positions_ =
          inner->register_module("wpe", std::make_shared<Embedding>(max_positions_, hidden, compute));
    }
    blocks_ = inner->register_module(gpt2 ? "h" : "layers", std::make_shared<StageList>());
    for (int64_t i = 0; i < options.num_hidden_layers; ++i) blocks_->append(std::make_shared<Block>(options));
    last_norm_ = inner->register_module(gpt2 ? "ln_f" : "norm", make_norm(options));
    if (!gpt2) rotary_ = inner->register_module("rotary_emb", std::make_shared<RotaryTable>(options));
    head_ = register_module("lm_head", options.tie_word_embeddings
                                           ? std::make_shared<Head>(tokens_->weight(), compute)
                                           : std::make_shared<Head>(hidden, vocabulary, compute));
  }
  std::string type_name() const override { return type_name_; }

 protected:
  /// GPT-2: T <= max_position_embeddings, else Error(kUsage).
  at::Tensor compute(const at::Tensor& ids, const StageContext& given) override {
    const int64_t length = ids.size(1), whole = given.cut ? length * given.cut->degree : length;
    if (positions_ && whole > max_positions_) {
      util::fail(
          util::ErrorKind::kUsage, "a sequence of ", whole, " tokens is longer than the ", max_positions_,
          " positions of the model; raise model.max_position_embeddings or shorten data.sequence_length");
    }
    if (tokens_->parallel() && (given.cache != nullptr || given.only_last)) {
      util::fail(util::ErrorKind::kUsage,
                 "expected a model on one rank for generation; found one whose layers ",
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
      if (given.cut) positions = given.cut->part_of(positions, positions.dim() - 1);
      x = tokens_->forward(ids, context);
      x = x + positions_->forward(positions.narrow(-1, first_of_part(x.size(1), length), x.size(1)), context);
    } else if (given.cut) {
      const int64_t chunk = length / 2;
      const auto [begin, end] = given.cut->chunks();
      const auto early = rotary_->angles_from(begin * chunk, chunk, ids.device()),
                 late = rotary_->angles_from(end * chunk, chunk, ids.device());
      context.rotary_cos = at::cat({early.first, late.first});
      context.rotary_sin = at::cat({early.second, late.second});
      x = tokens_->forward(ids, context);
    } else {
      std::tie(context.rotary_cos, context.rotary_sin) =
          cache != nullptr ? rotary_->angles_from(first, length, ids.device())
                           : rotary_->angles(length, ids.device());
      x = tokens_->forward(ids, context);
    }
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
    return head_->forward(last_norm_->forward(x), context);
  }

 private:
  /// Of the sequence, of which the embedding may leave a part.
  int64_t first_of_part(int64_t tokens, int64_t length) const {
    return tokens == length ? 0 : tokens_->parallel()->ranks.rank() * tokens;
  }

  std::string type_name_;
  int64_t max_positions_;
  double embedding_dropout_;
  std::shared_ptr<Embedding> tokens_, positions_;  ///< positions_: GPT-2's, else null
  std::shared_ptr<StageList> blocks_;
  std::shared_ptr<Norm> last_norm_;
  std::shared_ptr<Head> head_;
  std::shared_ptr<RotaryTable> rotary_;  ///< Llama's, else null
};

void check_rotary(const ModelOptions& options) {
  using util::ErrorKind;
  const RopeType type = options.rope_type.value();
  if (!(options.rope_factor > 0) || (type == RopeType::kDefault && options.rope_factor != 1)) {
    util::fail(ErrorKind::kUsage, "rope_factor ", options.rope_factor, " must be ",
               type == RopeType::kDefault ? "1 with rope_type default" : "above 0");
  }
  if (type == RopeType::kLlama3 &&
      !(options.rope_low_freq_factor < options.rope_high_freq_factor && options.rope_original_length >= 1)) {
    util::fail(ErrorKind::kUsage, "rope_low_freq_factor ", options.rope_low_freq_factor,
               " must be less than rope_high_freq_factor ", options.rope_high_freq_factor,
               ", and rope_original_length ", options.rope_original_length, " at least 1");
  }
}

void check_sizes(const ModelOptions& options) {
  if (options.vocab_size < 1 || options.hidden_size < 1 || options.intermediate_size < 1 ||
      options.num_hidden_layers < 1 || options.num_attention_heads < 1 || options.num_key_value_heads < 1 ||
      options.max_position_embeddings < 1) {
    util::fail(util::ErrorKind::kUsage, "every size of a model must be at least 1; check the model options");
  }
}

void check_heads(const ModelOptions& options) {
  if (options.head_dim == 0 && options.hidden_size % options.num_attention_heads != 0) {
    util::fail(util::ErrorKind::kUsage, "hidden_size ", options.hidden_size,
               " must be a multiple of num_attention_heads ", options.num_attention_heads);
  }
}

void check_llama(const ModelOptions& options) {
  using util::ErrorKind;
  check_heads(options);
  if (options.num_attention_heads % options.num_key_value_heads != 0) {
    util::fail(ErrorKind::kUsage, "num_attention_heads ", options.num_attention_heads,
               " must be a multiple of num_key_value_heads ", options.num_key_value_heads);
  }
  if (head_width(options) % 2 != 0) {
    util::fail(ErrorKind::kUsage, "the width of a head, ", head_width(options),
               ", must be even for rotary positions");
  }
  check_rotary(options);
  if (options.qkv_bias + options.attention_bias + (options.sliding_window > 0) > 1 ||
      (options.mlp_bias && (options.qkv_bias || options.sliding_window > 0))) {
    util::fail(ErrorKind::kUsage,
               "qkv_bias (Qwen2), sliding_window (Mistral), and attention_bias or mlp_bias (Llama) "
               "exclude each other, because no model family has more than one of them");
  }
}

void check_gpt2(const ModelOptions& options) {
  check_heads(options);
  if (options.head_dim > 0 || options.attention_bias || options.qkv_bias || options.mlp_bias ||
      options.sliding_window > 0 || options.rope_type != RopeType::kDefault ||
      options.hidden_act != Activation::kSilu) {
    util::fail(util::ErrorKind::kUsage,
               "head_dim, attention_bias, qkv_bias, mlp_bias, hidden_act, sliding_window and "
               "rope_type apply to llama only; leave them out for gpt2");
  }
}

/// GPT-2 paper, section 2.3.
double gpt2_deviation(const std::string& name, const ModelOptions& options) {
  if (!name.ends_with("c_proj.weight")) return options.initializer_range;
  return options.initializer_range / std::sqrt(2.0 * static_cast<double>(options.num_hidden_layers));
}

std::shared_ptr<Stage> make_built_in(const ModelOptions& options) {
  return std::make_shared<Decoder>(options);
}

util::Registry<ModelKind>& kinds() {
  static util::Registry<ModelKind> kinds(
      "model",
      {{"llama", {.make = make_built_in, .check = check_llama, .plan = decoder_plan}},
       {"gpt2",
        {.make = make_built_in, .check = check_gpt2, .deviation = gpt2_deviation, .plan = decoder_plan}}});
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
    util::fail(util::ErrorKind::kUsage, "mesh.model must be 1 with model.architecture = \"",
               options.architecture, "\", whose plug-in gives no plan of its layers, but is ",
               group->world_size(), "; give the processes to mesh.data, or ModelKind a plan");
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
