#include "train/block_graphs.h"

#include "util/device_graph.h"
#include "util/error.h"
#include "util/text.h"

namespace fsdp::train {
namespace {

constexpr const char* kBlock = "block";

bool is_block(const torch::nn::Module* module) {
  const auto* stage = dynamic_cast<const nn::Stage*>(module);
  return stage != nullptr && stage->type_name() == kBlock;
}

}  // namespace

void prepare_graphs(const config::Config& config, const c10::Device& device) {
  if (!config.training.cuda_graphs) return;
  if (!device.is_cuda()) {
    util::fail(util::ErrorKind::kUsage, "training.cuda_graphs: expected a GPU; found training on ",
               device.str(), "; leave it out");
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
      util::fail(util::ErrorKind::kUsage,
                 "training.cuda_graphs: expected units that are whole blocks or hold several; found unit ",
                 name, " inside block ", around,
                 ", which cannot be gathered in the middle of a graph; raise fsdp.min_num_params or set "
                 "fsdp.wrap_stages = [\"block\"]");
    }
  }
  return nn::graph_stages(model, {kBlock}, std::move(make_pool));
}

std::string describe(const nn::GraphCounts& counts) {
  return util::concat("CUDA graphs: ", util::with_commas(counts.recorded), " recorded, ",
                      util::with_commas(counts.launched), " launched, ", util::with_commas(counts.plain),
                      " passes through blocks kernel by kernel");
}

}  // namespace fsdp::train
