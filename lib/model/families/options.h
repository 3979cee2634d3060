#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/util/enum_names.h"
#include "base/util/plugin_values.h"

namespace fsdp::nn {

/// Activation of a feed-forward, with the names of transformers' ACT2FN.
enum class Activation {
  kSilu,      ///< x * sigmoid(x)
  kGeluTanh,  ///< GELU in its approximation by tanh
  kGelu,      ///< GELU
};
constexpr auto enum_names(Activation) {
  return std::to_array<util::EnumName<Activation>>({{Activation::kSilu, "silu"},
                                                    {Activation::kGeluTanh, "gelu_pytorch_tanh"},
                                                    {Activation::kGelu, "gelu"}});
}

/// How a model is extended to positions beyond the length of its first training.
enum class RopeType {
  kDefault,   ///< not at all
  kLinear,    ///< Chen et al.: Extending context window by positional interpolation, 2023
  kLlama3,    ///< The Llama 3 herd of models, 2024, as transformers computes it
  kYarn,      ///< Peng et al.: YaRN, 2023
  kLongrope,  ///< Ding et al.: LongRoPE, 2024
  kDynamic,   ///< NTK-aware scaling, by the length of the sequence
};
constexpr auto enum_names(RopeType) {
  return std::to_array<util::EnumName<RopeType>>({{RopeType::kDefault, "default"},
                                                  {RopeType::kLinear, "linear"},
                                                  {RopeType::kLlama3, "llama3"},
                                                  {RopeType::kYarn, "yarn"},
                                                  {RopeType::kLongrope, "longrope"},
                                                  {RopeType::kDynamic, "dynamic"}});
}

/// Library for matrix products on the CPU (model/kernels/matmul.h); kAuto: the best that the machine has.
enum class MatmulChoice { kAuto, kMkl, kOneDnn, kAmx };
constexpr auto enum_names(MatmulChoice) {
  return std::to_array<util::EnumName<MatmulChoice>>({{MatmulChoice::kAuto, "auto"},
                                                      {MatmulChoice::kMkl, "mkl"},
                                                      {MatmulChoice::kOneDnn, "onednn"},
                                                      {MatmulChoice::kAmx, "amx"}});
}

/// Shape of a decoder-only language model; the names are those of Hugging Face's config.json. The table of
/// model/families/families.h says which of them an architecture has; those that it has not keep their
/// defaults.
struct ModelOptions {
  /// A preset of setup/config/presets.h, which gives the options below their defaults; empty: none.
  std::string preset = {};
  std::string architecture = "llama";  ///< one of architectures() (model/families/architectures.h)
  int64_t vocab_size = 256;
  int64_t hidden_size = 256;
  int64_t intermediate_size = 688;
  int64_t num_hidden_layers = 4;
  int64_t num_attention_heads = 8;
  int64_t num_key_value_heads = 8;  ///< fewer than heads: grouped-query attention
  int64_t head_dim = 0;             ///< width of a head; 0: hidden_size / num_attention_heads
  int64_t max_position_embeddings = 1024;
  int64_t sliding_window = 0;  ///< tokens that a token attends to, the last of which is itself; 0: all
  /// Every how manyth layer attends to all tokens in spite of sliding_window (Gemma); 0: none.
  int64_t sliding_window_pattern = 0;
  bool attention_bias = false;          ///< query, key, value and output projections
  bool qkv_bias = false;                ///< only query, key and value projections (Qwen2)
  bool mlp_bias = false;                ///< biases of the feed-forward
  bool use_parallel_residual = false;   ///< attention and feed-forward both read the block's input (GPT-NeoX)
  int64_t query_pre_attn_scalar = 0;    ///< scores are divided by its square root; 0: the width of a head
  double attention_multiplier = 0.0;    ///< scale of the scores (Granite); 0: that of query_pre_attn_scalar
  double embedding_multiplier = 1.0;    ///< factor of the embeddings (Granite)
  double residual_multiplier = 1.0;     ///< factor of what a layer adds to the block's input (Granite)
  double logits_scaling = 1.0;          ///< divisor of the logits (Granite)
  double attn_logit_softcapping = 0.0;  ///< scores s become cap * tanh(s / cap); 0: none
  double final_logit_softcapping = 0.0;  ///< logits likewise
  /// Activation of the feed-forward or of its gate: SwiGLU or GeGLU (Shazeer: GLU Variants Improve
  /// Transformer, 2020).
  Activation hidden_act = Activation::kSilu;
  // Of models with experts (model/nn/experts.h).
  int64_t num_experts = 0;              ///< feed-forwards of a layer (Mixtral's num_local_experts)
  int64_t num_experts_per_tok = 2;      ///< experts that compute for a token
  int64_t moe_intermediate_size = 0;    ///< width inside an expert (Qwen3); others have intermediate_size
  bool norm_topk_prob = false;          ///< the weights of a token's experts add up to 1 (Qwen3)
  int64_t decoder_sparse_step = 1;      ///< every how manyth layer has experts (Qwen3)
  double router_aux_loss_coef = 0.001;  ///< weight of the loss that balances experts, in training
  double rope_theta = 10000.0;
  util::Named<RopeType> rope_type = RopeType::kDefault;
  double rope_factor = 1.0;            ///< all types but default
  double rope_low_freq_factor = 1.0;   ///< llama3
  double rope_high_freq_factor = 4.0;  ///< llama3
  int64_t rope_original_length =
      8192;  ///< llama3, yarn, longrope: tokens of a sequence in the first training
  /// yarn, longrope: factor of cosines and sines; 0: the one that follows from the other options.
  double rope_attention_factor = 0.0;
  double rope_beta_fast = 32.0;      ///< yarn: turns in the original length above which nothing is scaled
  double rope_beta_slow = 1.0;       ///< yarn: turns below which the whole factor applies
  double rope_mscale = 0.0;          ///< yarn: with rope_mscale_all_dim, gives the attention factor; 0: none
  double rope_mscale_all_dim = 0.0;  ///< yarn
  bool rope_truncate = true;         ///< yarn: the bounds between fast and slow are whole numbers
  std::vector<double>
      rope_short_factor{};  ///< longrope: divisors of the frequencies up to the original length
  std::vector<double> rope_long_factor{};  ///< longrope: divisors of the frequencies of longer sequences
  double rope_local_base_freq = 0.0;   ///< rope_theta, unscaled, of layers with a window; 0: as all layers
  double partial_rotary_factor = 1.0;  ///< share of a head that rotates
  int64_t no_rope_layer_interval = 0;  ///< every how manyth layer has no rotary positions (SmolLM3); 0: none
  double rms_norm_eps = 1e-5;          ///< epsilon of RMSNorm
  double layer_norm_epsilon = 1e-5;    ///< epsilon of LayerNorm
  double initializer_range = 0.02;     ///< standard deviation of the initial weights
  double embedding_dropout = 0.0;      ///< dropout of the embeddings' sum (gpt2's embd_pdrop) in training
  double attention_dropout = 0.0;      ///< dropout of attention weights (attn_pdrop)
  double hidden_dropout = 0.0;         ///< dropout of the outputs of attention and feed-forward (resid_pdrop)
  bool tie_word_embeddings = false;    ///< the head uses the embedding's weight
  std::string init_from = {};  ///< a .safetensors file, a folder of them, or a checkpoint; empty: random
  std::vector<std::string> init_unused{};  ///< patterns of tensors there that the model need not have
  bool init_broadcast = false;  ///< only rank 0 reads or makes the initial weights, and broadcasts them

  // training.fused_kernels, training.logits_mib and training.matmul, which affect results by rounding only.
  bool fused_kernels = true;  ///< model/kernels/fused.h; off: libtorch's operations, composed by autograd
  int64_t logits_mib = 512;   ///< logits in memory at a time on a GPU
  util::Named<MatmulChoice> matmul = MatmulChoice::kAuto;

  util::PluginValues plugin_values = {};
};

enum class BaseQuantization { kNone, kInt8, kNf4 };
constexpr auto enum_names(BaseQuantization) {
  return std::to_array<util::EnumName<BaseQuantization>>({{BaseQuantization::kNone, "none"},
                                                          {BaseQuantization::kInt8, "int8"},
                                                          {BaseQuantization::kNf4, "nf4"}});
}

/// Adapters that are trained in place of the weights (model/nn/lora.h); PEFT's LoraConfig has the names in
/// brackets.
struct LoraOptions {
  int64_t rank = 0;                          ///< [r] 0: none, all weights are trained
  double alpha = 16;                         ///< [lora_alpha] what an adapter adds is scaled by alpha / rank
  double dropout = 0.0;                      ///< [lora_dropout] of the adapters' input, while training
  std::vector<std::string> targets = {"*"};  ///< [target_modules] patterns of names of linear layers
  bool use_rslora = false;                   ///< [use_rslora] alpha / sqrt(rank) instead
  bool dora = false;                         ///< [use_dora] train the norms of the rows of weights too
  std::string init_from = {};  ///< a folder of PEFT's or a checkpoint with the first values; empty: as PEFT's
  /// Keep and gather the frozen weights of linear layers in 4 or 8 bits (model/kernels/quantized.h): QLoRA.
  util::Named<BaseQuantization> quantize = BaseQuantization::kNone;

  bool is_on() const { return rank > 0; }
};

/// Activations that the device does not keep for backward.
enum class RecomputeMode {
  kNone,
  kSelective,  ///< backward recomputes some operations of stages, chosen for a budget of memory
               ///< (tools/plan/recomputation.h)
  kFull,       ///< all of a stage, of which only the input is kept
  kOffload,    ///< as kSelective, and what stages save may wait in host memory (model/nn/offload.h)
};
constexpr auto enum_names(RecomputeMode) {
  return std::to_array<util::EnumName<RecomputeMode>>({{RecomputeMode::kNone, "none"},
                                                       {RecomputeMode::kSelective, "selective"},
                                                       {RecomputeMode::kFull, "full"},
                                                       {RecomputeMode::kOffload, "offload"}});
}
/// Whether a budget of memory determines what the device keeps.
constexpr bool has_budget(util::Named<RecomputeMode> mode) {
  return mode == RecomputeMode::kSelective || mode == RecomputeMode::kOffload;
}

/// Part of one stage that the device does not keep.
struct StageRecomputation {
  std::string path;                          ///< path of the stage in the model
  std::vector<std::string> operations = {};  ///< entries of Stage::recomputable() that backward recomputes
  bool whole = false;    ///< backward recomputes the stage, of which only the input is saved
  bool offload = false;  ///< what is saved waits in host memory
};

/// Choice of the activations that the device does not keep.
struct CheckpointingOptions {
  util::Named<RecomputeMode> mode = RecomputeMode::kNone;
  std::vector<std::string> stage_types = {"block"};  ///< Stage::type_name() of the stages
  /// Budget of kSelective and kOffload, as a share of the memory between the least of the mode (0) and that
  /// of kNone (1). The least of kSelective is that of kFull; kOffload keeps inputs of stages in host memory.
  double memory_budget = 0.5;
  /// Choice of modes with a budget; nothing until it is made.
  std::optional<std::vector<StageRecomputation>> chosen = std::nullopt;
  /// OffloadOptions::patience of that choice.
  int64_t offload_patience = 1;
  /// Tokens of a row that a feed-forward computes at a time (Recompute in model/nn/recompute.h); 0: all.
  int64_t feed_forward_tokens = 0;
};

}  // namespace fsdp::nn
