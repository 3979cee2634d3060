#include "nn/float8.h"

#include "kernels/float8.h"
#include "nn/linear.h"
#include "util/text.h"

namespace fsdp::nn {
namespace {

template <typename Layer>
void choose(const std::string& name, Layer& layer, const std::vector<std::string>& exclude,
            Float8Layers& layers) {
  const bool excluded = util::matches_any(name + ".weight", exclude);
  const bool fits = kernels::fits_float8(layer.weight().sizes());
  (excluded ? layers.excluded : fits ? layers.chosen : layers.unfit).push_back(name);
  layer.set_float8(!excluded && fits);
}

}  // namespace

Float8Layers use_float8(torch::nn::Module& model, const std::vector<std::string>& exclude) {
  Float8Layers layers;
  for (const auto& item : model.named_modules(/*name_prefix=*/std::string(), /*include_self=*/false)) {
    if (auto* linear = dynamic_cast<Linear*>(item.value().get())) {
      choose(item.key(), *linear, exclude, layers);
    } else if (auto* transposed = dynamic_cast<TransposedLinear*>(item.value().get())) {
      choose(item.key(), *transposed, exclude, layers);
    }
  }
  return layers;
}

}  // namespace fsdp::nn
