#include "run/train/layer_modes.h"

#include <algorithm>
#include <vector>

#include "base/device/device_graph.h"
#include "base/util/error.h"
#include "base/util/nearest_pattern.h"
#include "base/util/text.h"
#include "model/kernels/float8.h"
#include "shard/engine/engine.h"
#include "tools/plan/recorded_pass.h"

namespace fsdp::train {

namespace {

void require_matches(const std::vector<std::string>& exclude, const nn::Float8Layers& layers) {
  std::vector<std::string> names;
  for (const auto& some : {layers.chosen, layers.unfit, layers.excluded}) {
    for (const std::string& name : some) names.push_back(name + ".weight");
  }
  util::require_matches("training.float8_exclude", exclude, names,
                        concat("weights of linear layers", names.empty() ? "" : " such as " + names.front()));
}

constexpr const char* kBlock = "block";

bool is_block(const torch::nn::Module* module) {
  const auto* stage = dynamic_cast<const nn::Stage*>(module);
  return stage != nullptr && stage->type_name() == kBlock;
}

}  // namespace

nn::Float8Layers apply_float8(const config::Config& config, nn::Stage& model, const c10::Device& device) {
  if (config.training.float8 == config::Float8Recipe::kNone) return {};
  kernels::require_float8("training.float8", device);
  nn::Float8Layers layers = plan::use_float8(model, config);
  require_matches(config.training.float8_exclude, layers);
  if (layers.chosen.empty()) {
    fail(ErrorKind::kUsage, "training.float8 requires linear layers whose sizes ",
         layers.of_parts ? "on each rank of mesh.model " : "", "are multiples of ", kernels::kFloat8Multiple,
         ", but ", layers.unfit.size(), " have other sizes and ", layers.excluded.size(),
         " are excluded by training.float8_exclude or mixed_precision.keep_float32; leave it out",
         layers.of_parts ? " or make mesh.model smaller" : "");
  }
  return layers;
}

std::string describe(const nn::Float8Layers& layers, const c10::Device& device) {
  std::string text = concat("training.float8: ", layers.chosen.size(),
                            " linear layers multiply in 8 bits, embedding and output head do not");
  if (!layers.unfit.empty()) {
    text += concat("; ", layers.unfit.size(), " stay in bfloat16, because their sizes ",
                   layers.of_parts ? "on each rank of mesh.model " : "", "are not multiples of ",
                   kernels::kFloat8Multiple, ": ", util::name_list(layers.unfit));
  }
  if (!layers.excluded.empty()) text += concat("; ", layers.excluded.size(), " are excluded");
  if (device.is_cpu()) text += "; on a CPU this is for tests, and slower than bfloat16";
  return text;
}

void prepare_graphs(const config::Config& config, const c10::Device& device) {
  if (!config.training.cuda_graphs) return;
  if (!device.is_cuda()) {
    fail(ErrorKind::kUsage, "training.cuda_graphs requires a GPU, but training is on ", device.str(),
         "; leave it out");
  }
  util::use_own_cuda_stream(device.index());
}

std::shared_ptr<const nn::GraphCounts> graph_blocks(nn::Stage& model, const shard::Engine& engine,
                                                    util::MakeGraphPool make_pool) {
  const auto modules = model.named_modules();
  for (const auto& unit : engine.units()) {
    if (engine.is_root(*unit)) continue;
    const std::string& name = unit->name();
    for (size_t dot = name.rfind('.'); dot != std::string::npos && dot > 0; dot = name.rfind('.', dot - 1)) {
      const std::string around = name.substr(0, dot);
      const auto* module = modules.find(around);
      if (module == nullptr || !is_block(module->get())) continue;
      fail(ErrorKind::kUsage,
           "training.cuda_graphs requires units that are whole blocks or contain several, but "
           "unit ",
           name, " is inside block ", around,
           " and cannot be gathered in the middle of a graph; raise fsdp.min_num_params "
           "or set fsdp.wrap_stages = [\"block\"]");
    }
  }
  return nn::graph_stages(model, {kBlock}, std::move(make_pool));
}

std::string describe(const nn::GraphCounts& counts) {
  return concat("CUDA graphs: ", util::with_commas(counts.recorded), " recorded, ",
                util::with_commas(counts.launched), " launched, ", util::with_commas(counts.plain),
                " passes through blocks kernel by kernel");
}

}  // namespace fsdp::train
