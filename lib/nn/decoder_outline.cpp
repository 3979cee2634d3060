#include "nn/decoder_outline.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "nn/layer_specs.h"
#include "util/error.h"

namespace fsdp::nn {
namespace {

/// Writes nodes and parameters in the order in which modules register them.
class Writer {
 public:
  /// A stage, or a module that is none (empty `type`), with what `inside` writes.
  template <typename Inside>
  void node(const std::string& name, const std::string& type, const Inside& inside) {
    const size_t own = outline_.nodes.size(), around = std::exchange(open_, own);
    const std::string path = own == 0 ? name : name_inside(outline_.nodes[around].path, name);
    outline_.nodes.push_back({.path = path, .is_stage = !type.empty(), .type = type, .parent = around});
    inside();
    outline_.nodes[own].end = outline_.nodes.size();
    open_ = around;
  }

  /// A module with these parameters and nothing inside.
  struct Parameter {
    const char* name;
    std::vector<int64_t> shape;
  };
  void leaf(const std::string& name, const std::string& type, std::initializer_list<Parameter> parameters) {
    node(name, type, [&] {
      for (const Parameter& parameter : parameters) {
        outline_.parameters.push_back({.shape = parameter.shape,
                                       .names = {name_inside(outline_.nodes[open_].path, parameter.name)},
                                       .nodes = {open_}});
      }
    });
  }

  /// The parameter that is called `first` under one more name, in the node that is open.
  void tie(const std::string& name, const std::string& first) {
    auto parameter = std::find_if(outline_.parameters.begin(), outline_.parameters.end(),
                                  [&](const OutlineParameter& each) { return each.names.front() == first; });
    FSDP_CHECK(parameter != outline_.parameters.end(), first);
    parameter->names.push_back(name_inside(outline_.nodes[open_].path, name));
    parameter->nodes.push_back(open_);
  }

  ModelOutline take() { return std::move(outline_); }

 private:
  ModelOutline outline_;
  size_t open_ = 0;
};

class Decoder {
 public:
  explicit Decoder(const ModelOptions& options) : options_(options), hidden_(options.hidden_size) {}

  ModelOutline outline() {
    const bool llama = options_.architecture == "llama";
    writer_.node("", options_.architecture, [&] {
      if (llama) {
        writer_.node("model", "", [&] { llama_inside(); });
        head("model.embed_tokens.weight");
      } else {
        writer_.node("transformer", "", [&] { gpt2_inside(); });
        head("transformer.wte.weight");
      }
    });
    return writer_.take();
  }

 private:
  void llama_inside() {
    embedding("embed_tokens", options_.vocab_size);
    layers("layers", [&] {
      stage("self_attn", "attention", attention_layers(options_));
      stage("mlp", "feed_forward", feed_forward_spec(options_).layers());
      rms_norm("input_layernorm");
      rms_norm("post_attention_layernorm");
    });
    rms_norm("norm");
    writer_.leaf("rotary_emb", "", {});
  }

  void gpt2_inside() {
    embedding("wte", options_.vocab_size);
    embedding("wpe", options_.max_position_embeddings);
    layers("h", [&] {
      layer_norm("ln_1");
      stage("attn", "attention", attention_layers(options_));
      layer_norm("ln_2");
      stage("mlp", "feed_forward", feed_forward_spec(options_).layers());
    });
    layer_norm("ln_f");
  }

  template <typename Block>
  void layers(const char* name, const Block& block) {
    writer_.node(name, "", [&] {
      for (int64_t layer = 0; layer < options_.num_hidden_layers; ++layer) {
        writer_.node(std::to_string(layer), "block", block);
      }
    });
  }

  void embedding(const char* name, int64_t count) {
    writer_.leaf(name, "embedding", {{"weight", {count, hidden_}}});
  }
  void head(const char* table) {
    if (options_.tie_word_embeddings) {
      writer_.node("lm_head", "head", [&] { writer_.tie("weight", table); });
    } else {
      writer_.leaf("lm_head", "head", {{"weight", {options_.vocab_size, hidden_}}});
    }
  }
  void stage(const char* name, const char* type, const std::vector<LinearSpec>& linear_layers) {
    writer_.node(name, type, [&] {
      for (const auto& [layer, in, out, biased, transposed] : linear_layers) {
        const std::vector<int64_t> weight = transposed ? std::vector{in, out} : std::vector{out, in};
        if (biased) {
          writer_.leaf(layer, "", {{"weight", weight}, {"bias", {out}}});
        } else {
          writer_.leaf(layer, "", {{"weight", weight}});
        }
      }
    });
  }
  void rms_norm(const char* name) { writer_.leaf(name, "", {{"weight", {hidden_}}}); }
  void layer_norm(const char* name) { writer_.leaf(name, "", {{"weight", {hidden_}}, {"bias", {hidden_}}}); }

  const ModelOptions& options_;
  int64_t hidden_;
  Writer writer_;
};

}  // namespace

namespace {

void check_rotary(const ModelOptions& options) {
  using util::ErrorKind;
  const std::string& type = options.rope_type;
  if (type != "default" && type != "linear" && type != "llama3") {
    util::fail(ErrorKind::kUsage, "unknown rope_type \"", type, "\"; expected default, linear or llama3");
  }
  if (!(options.rope_factor > 0) || (type == "default" && options.rope_factor != 1)) {
    util::fail(ErrorKind::kUsage, "rope_factor ", options.rope_factor, " must be ",
               type == "default" ? "1 with rope_type default" : "above 0");
  }
  if (type == "llama3" &&
      !(options.rope_low_freq_factor < options.rope_high_freq_factor && options.rope_original_length >= 1)) {
    util::fail(ErrorKind::kUsage, "rope_low_freq_factor ", options.rope_low_freq_factor,
               " must be less than rope_high_freq_factor ", options.rope_high_freq_factor,
               ", and rope_original_length ", options.rope_original_length, " at least 1");
  }
}

}  // namespace

void check_decoder_options(const ModelOptions& options) {
  using util::ErrorKind;
  if (options.vocab_size < 1 || options.hidden_size < 1 || options.intermediate_size < 1 ||
      options.num_hidden_layers < 1 || options.num_attention_heads < 1 || options.num_key_value_heads < 1 ||
      options.max_position_embeddings < 1) {
    util::fail(ErrorKind::kUsage, "every size of a model must be at least 1; check the model options");
  }
  if (options.head_dim == 0 && options.hidden_size % options.num_attention_heads != 0) {
    util::fail(ErrorKind::kUsage, "hidden_size ", options.hidden_size,
               " must be a multiple of num_attention_heads ", options.num_attention_heads);
  }
  if (options.architecture == "llama") {
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
                 "no family of models has this combination: qkv_bias (Qwen2), sliding_window (Mistral), and "
                 "attention_bias or mlp_bias (Llama) exclude each other");
    }
  } else if (options.architecture != "gpt2") {
    util::fail(ErrorKind::kUsage, "unknown model architecture \"", options.architecture,
               "\"; expected llama or gpt2");
  } else if (options.head_dim > 0 || options.attention_bias || options.qkv_bias || options.mlp_bias ||
             options.sliding_window > 0 || options.rope_type != "default" ||
             options.hidden_act != Activation::kSilu) {
    util::fail(ErrorKind::kUsage,
               "head_dim, attention_bias, qkv_bias, mlp_bias, hidden_act, sliding_window and rope_type are "
               "llama's; leave them out for gpt2");
  }
}

ModelOutline decoder_outline(const ModelOptions& options) {
  check_decoder_options(options);
  return Decoder(options).outline();
}

}  // namespace fsdp::nn
