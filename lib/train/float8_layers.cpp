#include "train/float8_layers.h"

#include <algorithm>

#include "kernels/float8.h"
#include "util/error.h"
#include "util/text.h"

namespace fsdp::train {
namespace {

using util::concat;
using util::ErrorKind;

void require_match(const std::string& pattern, const nn::Float8Layers& layers) {
  const auto matches = [&](const std::string& name) {
    return util::matches_any(name + ".weight", {pattern});
  };
  if (std::any_of(layers.excluded.begin(), layers.excluded.end(), matches)) return;
  const std::vector<std::string>& some = layers.chosen.empty() ? layers.unfit : layers.chosen;
  util::fail(ErrorKind::kUsage, "training.float8_exclude: expected patterns of weights of linear layers",
             some.empty() ? "" : concat(" such as ", some.front(), ".weight"), "; found \"", pattern,
             "\", which matches none; correct or remove it");
}

}  // namespace

nn::Float8Layers apply_float8(const config::Config& config, nn::Stage& model, const c10::Device& device) {
  if (config.training.float8 == "none") return {};
  kernels::require_float8("training.float8", device);
  std::vector<std::string> exclude = config.training.float8_exclude;
  // Fp32 products have nothing to gain, and are not meant to lose digits.
  const std::vector<std::string>& in_float32 = config.mixed_precision.keep_float32;
  exclude.insert(exclude.end(), in_float32.begin(), in_float32.end());
  nn::Float8Layers layers = nn::use_float8(model, exclude);
  for (const std::string& pattern : config.training.float8_exclude) require_match(pattern, layers);
  if (layers.chosen.empty()) {
    util::fail(ErrorKind::kUsage, "training.float8: expected linear layers whose sizes are multiples of ",
               kernels::kFloat8Multiple, "; found ", layers.unfit.size(), " with other sizes and ",
               layers.excluded.size(),
               " that training.float8_exclude or mixed_precision.keep_float32 names; leave it out");
  }
  return layers;
}

std::string describe(const nn::Float8Layers& layers, const c10::Device& device) {
  std::string text = concat("training.float8: ", layers.chosen.size(),
                            " linear layers multiply in 8 bits, embedding and output head do not");
  if (!layers.unfit.empty()) {
    text += concat("; ", layers.unfit.size(), " stay in bfloat16, whose sizes are no multiples of ",
                   kernels::kFloat8Multiple, ": ", util::name_list(layers.unfit));
  }
  if (!layers.excluded.empty()) text += concat("; ", layers.excluded.size(), " are excluded");
  if (device.is_cpu()) text += "; on a CPU this is for tests, and slower than bfloat16";
  return text;
}

}  // namespace fsdp::train
