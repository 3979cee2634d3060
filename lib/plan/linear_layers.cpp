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

LinearLayers linear_layers(const std::vector<nn::LinearSpec>& specs) {
  LinearLayers layers;
  for (const nn::LinearSpec& spec : specs) layers.push_back({spec.name, spec.in, spec.out});
  return layers;
}

void choose_float8(LinearLayers& layers, const std::string& stage, const Float8Choice& choice) {
  if (!choice.on) return;
  for (LinearLayer& layer : layers) {
    layer.float8 = choice.has(stage + "." + layer.name, layer.in, layer.out);
  }
}

}  // namespace fsdp::plan
