#include "shard/spmd/model_marks.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/util/error.h"
#include "model/nn/attention.h"
#include "model/nn/hooked.h"
#include "model/nn/parallel_layers.h"
#include "model/nn/parallelize.h"
#include "shard/spmd/marks.h"

namespace fsdp::shard {
namespace {

using comm::MeshAxis;
using nn::SharedLayer;
using Axes = PartitionSpec::Axes;

const PartitionSpec kModelAlone = {{MeshAxis::kModel}};

/// The dimension that a parameter's mark cuts over model.
std::optional<int64_t> model_dimension(const at::Tensor& parameter) {
  const auto sharding = parameter.defined() ? sharding_of(parameter) : std::nullopt;
  const auto cut = sharding ? only_model(sharding->spec).cut_dimensions() : std::vector<size_t>();
  return cut.empty() ? std::nullopt : std::optional(static_cast<int64_t>(cut.front()));
}

template <typename... Parts>
[[noreturn]] void refuse_mark(const std::string& name, const at::Tensor& parameter, const Parts&... parts) {
  fail(ErrorKind::kUsage, "spmd_fully_shard(), ", name, " marked ", to_string(sharding_of(parameter)->spec),
       ": ", parts...);
}

struct MarkedLayer {
  std::string path;
  SharedLayer layer;
  int64_t dimension = 0;  ///< cut of the weight over model

  std::string parent() const { return path.substr(0, std::min(path.rfind('.'), path.size())); }
  bool is_linear() const { return layer.kind == SharedLayer::LayerKind::kLinear; }
  bool cuts_inputs() const { return is_linear() && dimension != layer.output_dimension(); }
  bool cuts_outputs() const { return is_linear() && !cuts_inputs(); }
};

/// `is_of_attention`: the layer is inside of this library's attention.
void check_weight(const MarkedLayer& marked, bool is_of_attention) {
  const at::Tensor& weight = marked.layer.weight;
  const auto refuse = [&](const auto&... parts) { refuse_mark(marked.path + ".weight", weight, parts...); };
  if (is_of_attention) {
    refuse(
        "expected a layer of features; found one of attention heads, which a mark does not know; "
        "use parallelize_decoder() and SpmdOptions::shard.parts");
  }
  if (!marked.is_linear() && marked.dimension != 0) {
    refuse("expected the axis model on dimension 0, the tokens of the vocabulary; found it on dimension ",
           marked.dimension, "; mark dimension 0 with it");
  }
  const Axes axes = sharding_of(weight)->spec.axes(static_cast<size_t>(marked.dimension));
  if (axes.size() > 1) {
    refuse("expected the axis model alone on its dimension, while other axes cut another one; found ",
           axes.size(), " axes on dimension ", marked.dimension, "; move the others");
  }
}

/// A bias follows its weight.
void check_bias(const MarkedLayer& marked) {
  const at::Tensor& bias = marked.layer.bias;
  if (!bias.defined() || !sharding_of(bias)) return;
  const bool is_cut = marked.cuts_outputs();
  if (model_dimension(bias).has_value() == is_cut) return;
  refuse_mark(marked.path + ".bias", bias, "expected a bias that ",
              is_cut ? "the axis model cuts like its weight's output features"
                     : "is whole on each rank of model, as it is added to the sum over them",
              "; found the opposite; mark it so or leave its mark out");
}

/// Only parameters of layers that ranks can share may be cut over model.
void check_parameters(const std::string& path, const torch::nn::Module& module,
                      const std::optional<SharedLayer>& layer) {
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    const at::Tensor& parameter = item.value();
    const bool is_fine = !model_dimension(parameter) ||
                         (layer && (parameter.is_same(layer->weight) || model_dimension(layer->weight)));
    if (is_fine) continue;
    refuse_mark(path.empty() ? item.key() : path + "." + item.key(), parameter,
                "expected the axis model on the weight of a linear layer, an embedding or a head, whose bias "
                "follows it; found a parameter of ",
                module.name(), "; leave the axis out, or make it such a layer");
  }
}

std::vector<MarkedLayer> marked_layers(torch::nn::Module& module) {
  std::vector<MarkedLayer> layers;
  std::string attention;
  check_parameters("", module, std::nullopt);
  for (const auto& item : module.named_modules(std::string(), /*include_self=*/false)) {
    const std::string& path = item.key();
    const auto layer = nn::shared_layer(*item.value());
    if (dynamic_cast<const nn::Attention*>(item.value().get()) != nullptr) attention = path + ".";
    check_parameters(path, *item.value(), layer);
    const auto dimension = layer ? model_dimension(layer->weight) : std::nullopt;
    if (!dimension) continue;
    layers.push_back({path, *layer, *dimension});
    check_weight(layers.back(), !attention.empty() && path.starts_with(attention));
    check_bias(layers.back());
  }
  return layers;
}

void require_marks_on(const comm::Mesh& mesh, const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) {
    const auto sharding = sharding_of(item.value());
    if (!sharding || sharding->mesh == mesh.shape()) continue;
    fail(ErrorKind::kUsage, "spmd_fully_shard(): expected parameters marked on the mesh ",
         to_string(mesh.shape()), "; found ", item.key(), " marked on ", to_string(sharding->mesh),
         "; mark it on the mesh that the module is sharded over");
  }
}

/// Marks what a layer leaves, and refuses what it cannot take. Around the hook that computes.
class LayerMarks final : public nn::CallHook {
 public:
  /// leaves_parts: its output features lie on the ranks
  LayerMarks(std::string path, const SharedLayer& layer, bool takes_parts, bool takes_whole,
             bool leaves_parts)
      : path_(std::move(path)),
        is_linear_(layer.kind == SharedLayer::LayerKind::kLinear),
        takes_parts_(takes_parts),
        takes_whole_(takes_whole),
        leaves_parts_(leaves_parts),
        features_(layer.weight.size(is_linear_ ? layer.output_dimension() : 1)) {}

  std::shared_ptr<void> before(const nn::CallTensors& inputs) override {
    input_ = inputs.empty() ? std::nullopt : sharding_of(*inputs.front());
    if (!input_) return nullptr;
    const size_t dimensions = input_->global_shape.size();
    for (size_t i = 0; i < dimensions; ++i) {
      const Axes& axes = input_->spec.axes(i);
      const bool is_of_features = is_linear_ && i + 1 == dimensions;
      if (!is_of_features && !only_model(PartitionSpec{axes}).cut_dimensions().empty()) {
        refuse(i, "that the ranks of model have alike");
      }
      if (!is_of_features) continue;
      const bool is_whole = input_->mesh.along(axes) == 1;
      const bool is_part = cut_alike(PartitionSpec{axes}, kModelAlone, input_->mesh);
      if (!(is_whole && takes_whole_) && !(is_part && takes_parts_)) {
        refuse(i, takes_parts_ ? "whose features are cut over model alone" : "with all features");
      }
    }
    return nullptr;
  }

  void after(const nn::CallTensors& outputs) override {
    if (!input_ || outputs.empty()) return;
    std::vector<int64_t> shape = input_->global_shape;
    if (is_linear_) shape.pop_back();
    std::vector<Axes> cuts;
    for (size_t i = 0; i < shape.size(); ++i) cuts.push_back(input_->spec.axes(i));
    cuts.push_back(leaves_parts_ ? kModelAlone.axes(0) : Axes());
    shape.push_back(features_);
    mark_activation(*outputs.front(),
                    Sharding{input_->mesh, PartitionSpec(std::move(cuts)), std::move(shape)});
  }

 private:
  [[noreturn]] void refuse(size_t dimension, const char* expected) const {
    const int64_t size = input_->global_shape[dimension];
    const int64_t ranks = input_->mesh.along(input_->spec.axes(dimension));
    fail(ErrorKind::kUsage, path_, ": expected an input ", expected, "; found one of shape ",
         at::IntArrayRef(input_->global_shape), " sharded as ", to_string(input_->spec), ", with ",
         size / ranks, " = ", size, " / ", ranks, " of dimension ", dimension,
         " on a rank; mark it, or what comes before this layer, otherwise");
  }

  std::string path_;
  bool is_linear_, takes_parts_, takes_whole_, leaves_parts_;
  int64_t features_;  ///< width of the output on all ranks
  std::optional<Sharding> input_;
};

}  // namespace

PartitionSpec without_model(const PartitionSpec& spec) {
  std::vector<Axes> dimensions(spec.size());
  for (size_t i = 0; i < spec.size(); ++i) {
    dimensions[i] = spec.axes(i);
    std::erase(dimensions[i], MeshAxis::kModel);
  }
  return PartitionSpec(std::move(dimensions));
}

PartitionSpec only_model(const PartitionSpec& spec) {
  std::vector<Axes> dimensions(spec.size());
  for (size_t i = 0; i < spec.size(); ++i) {
    if (std::ranges::count(spec.axes(i), MeshAxis::kModel) > 0) dimensions[i] = {MeshAxis::kModel};
  }
  return PartitionSpec(std::move(dimensions));
}

nn::ParallelPlan plan_of_marks(torch::nn::Module& module, const comm::Mesh& mesh) {
  require_marks_on(mesh, module);
  if (mesh.shape().model == 1) return {};
  const std::vector<MarkedLayer> layers = marked_layers(module);
  nn::ParallelPlan plan;
  for (size_t i = 0; i < layers.size(); ++i) {
    const MarkedLayer& layer = layers[i];
    const auto is_sibling = [&](const MarkedLayer& each) { return each.parent() == layer.parent(); };
    if (layer.cuts_outputs()) {
      const bool is_taken =
          std::any_of(layers.begin() + static_cast<ptrdiff_t>(i), layers.end(),
                      [&](const auto& each) { return is_sibling(each) && each.cuts_inputs(); });
      nn::ColwiseParallel style;
      if (!is_taken) style.output = nn::Replicate{};
      plan.push_back({layer.path, style});
    } else if (layer.layer.kind == SharedLayer::LayerKind::kHead) {
      plan.push_back({layer.path, nn::ColwiseParallel{}});
    } else {
      const bool is_fed =
          std::any_of(layers.begin(), layers.begin() + static_cast<ptrdiff_t>(i),
                      [&](const auto& each) { return is_sibling(each) && each.cuts_outputs(); });
      nn::RowwiseParallel style;
      if (!is_fed || !layer.is_linear()) style.input = nn::Replicate{};
      plan.push_back({layer.path, style});
    }
  }
  return plan;
}

std::vector<nn::ParameterPart> share_layers(torch::nn::Module& module, const nn::ParallelPlan& plan,
                                            const comm::Mesh& mesh) {
  const auto& group = mesh.model();
  // Throws before a hook is attached.
  nn::parameter_parts(module, plan, group->world_size(), group->rank());
  const auto modules = module.named_modules(std::string(), /*include_self=*/false);
  for (const auto& [path, style] : plan) {
    const std::shared_ptr<torch::nn::Module>& layer = modules[path];
    const auto shared = nn::shared_layer(*layer);
    auto* hookable = dynamic_cast<nn::Hookable*>(layer.get());
    if (hookable == nullptr || !shared || shared->kind == SharedLayer::LayerKind::kHead) continue;
    const auto* colwise = std::get_if<nn::ColwiseParallel>(&style);
    const auto* rowwise = std::get_if<nn::RowwiseParallel>(&style);
    hookable->attach(std::make_shared<LayerMarks>(
        path, *shared, /*takes_parts=*/rowwise != nullptr,
        /*takes_whole=*/rowwise == nullptr || rowwise->input == nn::Layout(nn::Replicate{}),
        /*leaves_parts=*/colwise != nullptr && colwise->output == nn::Layout(nn::Shard{-1})));
  }
  return nn::parallelize(module, plan, group);
}

}  // namespace fsdp::shard
