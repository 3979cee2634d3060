// What is trained, and on what: [run], [model] and [data].

#include <algorithm>
#include <variant>

#include "data/options/datasets.h"
#include "data/options/text_names.h"
#include "model/families/architectures.h"
#include "model/families/families.h"
#include "model/families/option_rules.h"
#include "model/families/rotary_scaling.h"
#include "setup/config/key_tables.h"
#include "setup/config/presets.h"

namespace fsdp::config {
namespace {

Condition has_adapters() { return is_above_0("lora.rank"); }

/// Entries are judged by their names, since a config may be checked where its data are not.
Condition reads_texts() {
  return {.words = "data.train or data.validation names texts",
          .keys = {"data.train", "data.validation"},
          .holds = [](Config& config) {
            return std::ranges::any_of(config.data.train, data::may_be_text) ||
                   std::ranges::any_of(config.data.validation, data::may_be_text);
          }};
}

Constraint a_preset() {
  std::vector<std::string> names = {""};
  for (const ModelPreset& preset : model_presets()) names.push_back(preset.name);
  return one_of(std::move(names));
}

/// Limits of an option of [model]: a default of 0 stands for none, and allows 0.
Constraint limits_of(const nn::OptionRule& rule) {
  const nn::ModelOptions defaults;
  if (const auto* size = std::get_if<int64_t nn::ModelOptions::*>(&rule.field)) {
    return between(defaults.**size > 0 ? 1 : 0, static_cast<double>(rule.most));
  }
  const auto* number = std::get_if<double nn::ModelOptions::*>(&rule.field);
  if (number == nullptr) return {};
  if (rule.range == nn::OptionRange::kShare) return from_up_to_below(0, 1);
  return rule.range != nn::OptionRange::kNotNegative && defaults.**number > 0 ? above(0) : at_least(0);
}

/// Values of model.rope_type that read the option.
std::vector<std::string> names_of_types(std::string_view option) {
  const auto found = std::ranges::find(nn::rope_options(), option, &nn::RopeOption::option);
  std::vector<std::string> names;
  if (found == nn::rope_options().end()) return names;
  for (const nn::RopeType type : found->types) names.emplace_back(util::name_of(type));
  return names;
}

/// Adds the limits of options that describe a model's shape. Those that only some families have matter with
/// these alone.
std::vector<Key> with_option_rules(std::vector<Key> keys) {
  for (Key& key : keys) {
    const auto rule = std::ranges::find(nn::option_rules(), key.name, &nn::OptionRule::name);
    if (key.section != "model" || rule == nn::option_rules().end()) continue;
    if (!key.constraint.min) key.constraint = limits_of(*rule);
    if (const auto types = names_of_types(key.name); !types.empty()) {
      key.matters = is("model.rope_type", types);
    }
    const bool is_of_some =
        std::ranges::any_of(nn::families(), [&](const nn::Family& family) { return family.has(key.name); });
    if (!is_of_some) continue;
    const Condition reads = architecture_reads(key.name);
    key.matters = key.matters.holds ? reads && key.matters : reads;
  }
  return keys;
}

}  // namespace

std::vector<Key> model_keys() {
  return with_option_rules({
      {KEY(run, name), "name of the run in logs", non_empty()},
      {KEY(run, output_dir), "folder of checkpoints, metrics and the resolved config", non_empty()},
      {KEY(run, seed), "seed of initial weights and sample order", at_least(0)},
      {KEY(run, plugins),
       "shared libraries that add models, losses, optimizers, schedules, data sets and sections of keys; "
       "each runs as part of this program"},

      {KEY(model, preset), "a well-known model that sets the keys of [model] that are not given", a_preset()},
      {KEY(model, architecture), "family of the model", one_of_registered(nn::architectures())},
      {KEY(model, vocab_size),
       "tokens of the vocabulary; if init_from has fewer, the new rows are the mean of its rows"},
      {KEY(model, hidden_size), "width of the hidden states"},
      {KEY(model, intermediate_size), "width inside the feed-forward"},
      {KEY(model, num_hidden_layers), "number of blocks"},
      {KEY(model, num_attention_heads), "query heads of a block"},
      {KEY(model, num_key_value_heads),
       "key and value heads; fewer than query heads: grouped-query attention", Condition(),
       "num_attention_heads"},
      {KEY(model, head_dim), "width of a head; 0: hidden_size / num_attention_heads"},
      {KEY(model, attention_bias), "query, key, value and output projections have biases"},
      {KEY(model, qkv_bias), "query, key and value projections have biases (Qwen2)"},
      {KEY(model, mlp_bias), "the feed-forward has biases"},
      {KEY(model, hidden_act), "activation of the feed-forward, or of its gate"},
      {KEY(model, num_experts), "feed-forwards of a layer, of which each token uses some"},
      {KEY(model, num_experts_per_tok), "experts that a token uses"},
      {KEY(model, moe_intermediate_size), "width inside an expert"},
      {KEY(model, norm_topk_prob), "the weights of a token's experts are divided by their sum"},
      {KEY(model, decoder_sparse_step),
       "N: layers N, 2 N and so on have experts; the others have one feed-forward"},
      {KEY(model, router_aux_loss_coef),
       "weight, in the training loss, of the loss that balances experts over the tokens of a micro-batch without padding; 0: none",
       architecture_reads("num_experts")},
      {KEY(model, use_parallel_residual), "attention and feed-forward of a block both read its input"},
      {KEY(model, sliding_window), "attention window in tokens; 0: none"},
      {KEY(model, sliding_window_pattern), "every how manyth layer has no attention window; 0: all have it",
       is_above_0("model.sliding_window")},
      {KEY(model, query_pre_attn_scalar),
       "number by whose square root attention scores are divided; 0: the width of a head"},
      {KEY(model, attention_multiplier),
       "scale of attention scores; 0: the reciprocal root of query_pre_attn_scalar"},
      {KEY(model, embedding_multiplier), "factor of the embeddings"},
      {KEY(model, residual_multiplier), "factor of the result of attention and feed-forward"},
      {KEY(model, logits_scaling), "divisor of the model's logits"},
      {KEY(model, attn_logit_softcapping),
       "soft cap of attention scores, which are then cap * tanh(score / cap); 0: none"},
      {KEY(model, final_logit_softcapping), "soft cap of the model's logits; 0: none"},
      {KEY(model, max_position_embeddings), "longest sequence of the model, in tokens"},
      {KEY(model, rope_theta), "base of the rotary embedding"},
      {KEY(model, rope_type), "how rotary positions are scaled beyond the length of the original training"},
      {KEY(model, rope_factor), "ratio of the extended length to the original one"},
      {KEY(model, rope_low_freq_factor),
       "frequencies that rotate fewer times than this over the original length are scaled by the full "
       "factor"},
      {KEY(model, rope_high_freq_factor), "frequencies that rotate more times than this are not scaled"},
      {KEY(model, rope_original_length), "sequence length of the original training, in tokens"},
      {KEY(model, rope_attention_factor),
       "factor of the cosines and sines; 0: the one that follows from the other keys, as in transformers"},
      {KEY(model, rope_beta_fast), "frequencies that rotate more times than this are not scaled"},
      {KEY(model, rope_beta_slow),
       "frequencies that rotate fewer times than this over the original length are scaled by the full "
       "factor"},
      {KEY(model, rope_mscale),
       "with rope_mscale_all_dim: multipliers whose ratio gives the factor of the cosines and sines; 0: none"},
      {KEY(model, rope_mscale_all_dim), "see rope_mscale; 0: none"},
      {KEY(model, rope_truncate), "the bounds between fast and slow frequencies are rounded to whole ones"},
      {KEY(model, rope_short_factor),
       "divisor of each frequency in sequences of at most rope_original_length tokens"},
      {KEY(model, rope_long_factor), "divisor of each frequency in longer sequences"},
      {KEY(model, rope_local_base_freq),
       "base of the rotary embedding of layers with an attention window; 0: that of all layers"},
      {KEY(model, partial_rotary_factor), "share of a head that the rotary embedding rotates", between(0, 1)},
      {KEY(model, no_rope_layer_interval), "every how manyth layer has no rotary embedding; 0: none"},
      {KEY(model, rms_norm_eps), "epsilon of RMSNorm"},
      {KEY(model, layer_norm_epsilon), "epsilon of LayerNorm"},
      {KEY(model, initializer_range), "standard deviation of the initial weights"},
      {KEY(model, embedding_dropout), "dropout of the embeddings in training"},
      {KEY(model, attention_dropout),
       "dropout of the attention weights in training, which are then held in memory as a whole matrix"},
      {KEY(model, hidden_dropout), "dropout of the outputs of attention and feed-forward in training"},
      {KEY(model, tie_word_embeddings), "the head uses the embedding's weight"},
      {KEY(model, init_from),
       "initial weights: a Hugging Face folder, a .safetensors file or a checkpoint, whose model is the "
       "default of [model]; only weights are read; empty: random"},
      {KEY(model, init_unused), "patterns (* and ?) of tensors in init_from that the model may leave unused",
       is_given("model.init_from")},
      {KEY(model, init_broadcast),
       "only rank 0 reads (or generates) the initial weights and broadcasts them: for slow shared file "
       "systems"},

      {KEY(lora, rank),
       "fine-tune by LoRA: rank of the adapters, which are trained in place of the weights (PEFT's r); 0: train the "
       "weights",
       between(0, 65536)},
      {KEY(lora, alpha), "what an adapter adds is scaled by alpha / rank (lora_alpha)", above(0),
       has_adapters()},
      {KEY(lora, dropout), "dropout of the adapters' input in training (lora_dropout)",
       from_up_to_below(0, 1), has_adapters()},
      {KEY(lora, targets),
       "patterns (* and ?) of names of linear layers that get adapters, such as \"*q_proj\" (target_modules)",
       non_empty(), has_adapters()},
      {KEY(lora, use_rslora), "scale by alpha / sqrt(rank) instead", has_adapters()},
      {KEY(lora, quantize), "keep and gather the frozen weights of linear layers in 8 or 4 bits (QLoRA)",
       has_adapters()},
      {KEY(lora, dora), "train the norms of the weights' rows too: weight-decomposed adaptation (use_dora)",
       has_adapters()},
      {KEY(lora, init_from),
       "initial adapters: a folder that PEFT has saved or fsdp-ckpt exported, or a checkpoint of adapters; empty: "
       "random as PEFT's",
       has_adapters()},

      {KEY(data, dataset), "kind of data set in train and validation; a plug-in can add others",
       one_of_registered(data::datasets())},
      {KEY(data, train),
       "token files, or texts that are tokenized ahead of the step (also folders and shards of WebDataset and "
       "MosaicML), or patterns with *, read as if concatenated",
       non_empty()},
      {KEY(data, train_weights),
       "one number above 0 per entry of train: each entry is then a separate data set, "
       "sampled in this proportion",
       above(0)},
      {KEY(data, validation),
       "token files or texts, or patterns with *; empty: no validation; texts are tokenized at the start"},
      {KEY(data, tokenizer),
       "the tokenizer of the texts or token files: bytes, or the path that fsdp-data was given; for token files, "
       "batches do not depend on it",
       non_empty()},
      {KEY(data, sequence_length), "tokens per sample", between(1, 1'000'000)},
      {KEY(data, micro_batch_size), "samples per micro-batch and rank", between(1, 100'000)},
      {KEY(data, max_tokens),
       "instead of micro_batch_size in training: a micro-batch has rows of similar length, as many as fit into this "
       "many tokens with their padding, and counts as one sample; requires documents = \"split\"; 0: none",
       between(0, 1'000'000'000)},
      {KEY(data, documents),
       "mask: attention stays inside documents; split: one document per sample, the rest of the row is "
       "ignored; join: document boundaries are ignored"},
      {KEY(data, document_separator),
       "token that ends a document, in texts and in token files without an index of documents; -1: the tokenizer's end "
       "of text",
       between(-1, 4294967295.0), is_not("data.documents", "join") || reads_texts()},
      {KEY(data, train_on),
       "targets that the loss counts, of conversations that fsdp-data tokenize --chat has written: all tokens, "
       "those of the assistant, or those of its last turn in each conversation"},
      {KEY(data, allow_changed),
       "resume, with a warning, even if the token files or the settings that define a sample differ from those that the "
       "checkpoint was trained with",
       is_not("checkpoint.resume", "never")},
      {KEY(data, prefetch_batches), "batches that a thread prepares ahead of the step; 0: none",
       between(0, 1000)},
      {KEY(data, shuffle), "visit the samples in an order that depends on run.seed"},
      {KEY(data, shuffle_block_size),
       "texts: samples, one after another, that are shuffled among each other; the first step waits for their tokens",
       between(1, 1 << 24), is("data.shuffle", {"true"}) && reads_texts()},
      {KEY(data, text_column),
       "texts: field of a JSON line, or column of a table, with the document or its tokens", non_empty(),
       reads_texts()},
      {KEY(data, skip_bad), "texts: rows that cannot be used and are left out, at most", at_least(0),
       reads_texts()},
      {KEY(data, cache_gib),
       "texts: GiB of tokens that are kept on the disk of each host, in the folder that FSDP_CACHE_DIR names or in "
       "run.output_dir",
       between(1, 1 << 20), reads_texts()},
  });
}

}  // namespace fsdp::config
