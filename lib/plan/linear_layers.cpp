#include "plan/linear_layers.h"

#include "util/name_patterns.h"

namespace fsdp::plan {

bool Float8Choice::has(const std::string& layer, int64_t in, int64_t out) const {
  return on && in % kFloat8Multiple == 0 && out % kFloat8Multiple == 0 &&
         !util::matches_any(layer + ".weight", exclude);
}

Float8Choice float8_choice(const config::Config& config) {
  const int64_t rows = config.data.micro_batch_size * config.data.sequence_length;
  Float8Choice choice = {.on = config.training.float8 != "none" && rows % kFloat8Multiple == 0,
                         .exclude = config.training.float8_exclude};
  const std::vector<std::string>& in_float32 = config.mixed_precision.keep_float32;
  choice.exclude.insert(choice.exclude.end(), in_float32.begin(), in_float32.end());
  return choice;
}

LinearLayers attention_layers(const nn::ModelOptions& model) {
  const int64_t hidden = model.hidden_size;
  if (model.architecture != "llama") return {{"c_attn", hidden, 3 * hidden}, {"c_proj", hidden, hidden}};
  const int64_t queries = nn::query_width(model), keys = nn::key_width(model);
  return {{"q_proj", hidden, queries},
          {"k_proj", hidden, keys},
          {"v_proj", hidden, keys},
          {"o_proj", queries, hidden}};
}

LinearLayers feed_forward_layers(const nn::ModelOptions& model) {
  const int64_t hidden = model.hidden_size, inner = model.intermediate_size;
  if (model.architecture != "llama") return {{"c_fc", hidden, inner}, {"c_proj", inner, hidden}};
  return {{"gate_proj", hidden, inner}, {"up_proj", hidden, inner}, {"down_proj", inner, hidden}};
}

void choose_float8(LinearLayers& layers, const std::string& stage, const Float8Choice& choice) {
  if (!choice.on) return;
  for (LinearLayer& layer : layers) {
    layer.float8 = choice.has(stage + "." + layer.name, layer.in, layer.out);
  }
}

}  // namespace fsdp::plan
