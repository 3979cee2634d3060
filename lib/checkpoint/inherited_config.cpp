#include "checkpoint/inherited_config.h"

#include <string>

#include "checkpoint/hugging_face_config.h"
#include "util/dtype.h"
#include "util/error.h"

namespace fsdp::checkpoint {
using nlohmann::json;

namespace {

/// Of hugging_face_config(), what weights do not determine.
constexpr const char* kFree[] = {"initializer_range", "attention_dropout", "attn_pdrop", "embd_pdrop",
                                 "resid_pdrop"};
constexpr const char* kIds[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
constexpr const char* kDtypeKeys[] = {"dtype", "torch_dtype"};

json without_free_keys(json config) {
  for (const char* key : kFree) config.erase(key);
  return config;
}

/// nullopt for what is no model of ours.
std::optional<json> as_ours(const json& source) {
  try {
    return hugging_face_config(options_from_hugging_face(source, "config"));
  } catch (const util::Error&) {
    return std::nullopt;
  }
}

}  // namespace

json inherited_config(const nn::ModelOptions& options, const json& source) {
  const json own = hugging_face_config(options);
  if (!source.is_object()) return own;
  json config = own;
  const std::optional<json> before = as_ours(source);
  if (before && without_free_keys(*before) == without_free_keys(own)) {
    config = source;
    for (const char* key : kFree) {
      if (own.contains(key)) config[key] = own[key];
    }
    // A part of the model without its head (LlamaModel) has become the whole one.
    config["architectures"] = {causal_model_class(config["model_type"])};
    config.erase("_name_or_path");  // where it lay once
    return config;
  }
  for (const char* key : kIds) {
    if (source.contains(key)) config[key] = source[key];
  }
  if (const auto dtype = dtype_of_config(source)) set_dtype(config, *dtype);
  return config;
}

const char* causal_model_class(const json& model_type) {
  if (model_type == "gpt2") return "GPT2LMHeadModel";
  if (model_type == "mistral") return "MistralForCausalLM";
  if (model_type == "qwen2") return "Qwen2ForCausalLM";
  FSDP_CHECK(model_type == "llama", model_type.dump());
  return "LlamaForCausalLM";
}

std::optional<c10::ScalarType> dtype_of_config(const json& config) {
  if (!config.is_object()) return std::nullopt;
  for (const char* key : kDtypeKeys) {
    const auto found = config.find(key);
    if (found == config.end() || !found->is_string()) continue;
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
      if (*found == util::dtype_name(dtype)) return dtype;
    }
  }
  return std::nullopt;
}

void set_dtype(json& config, c10::ScalarType dtype) {
  bool named = false;
  for (const char* key : kDtypeKeys) {
    if (!config.contains(key)) continue;
    config[key] = util::dtype_name(dtype);
    named = true;
  }
  if (!named) config["torch_dtype"] = util::dtype_name(dtype);
}

std::optional<c10::ScalarType> common_dtype(const Weights& weights) {
  std::optional<c10::ScalarType> common;
  for (const std::string& name : weights.names()) {
    const c10::ScalarType dtype = weights.dtype(name);
    if (!c10::isFloatingType(dtype)) continue;
    if (common && *common != dtype) return std::nullopt;
    common = dtype;
  }
  return common;
}

}  // namespace fsdp::checkpoint
