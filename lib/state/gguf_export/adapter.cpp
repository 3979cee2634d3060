#include "state/gguf_export/adapter.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <map>
#include <utility>

#include "base/util/error.h"
#include "base/util/shape.h"
#include "model/families/families.h"
#include "model/nn/lora.h"
#include "state/convert/peft_folder.h"
#include "state/description/described_model.h"
#include "state/gguf/forms.h"
#include "state/gguf_export/quantise.h"
#include "state/gguf_export/writer.h"
#include "state/hugging_face/hugging_face_config.h"
#include "state/manifest/manifest.h"
#include "state/manifest/staged_output.h"
#include "state/weights/gguf_layout.h"

namespace fsdp::gguf {

namespace {

using Shapes = std::map<std::string, std::vector<int64_t>>;

/// Place of the adapter's weight in GGUF files.
NamedStorage checked_place(const GgufForm& form, const Shapes& shapes, const AdapterTensors& adapter) {
  const auto found = shapes.find(adapter.weight);
  const auto place = their_tensor(form, adapter.weight);
  const auto refuse = [&](const auto&... what) {
    fail(ErrorKind::kCheckpoint, "the adapter of ", adapter.weight, what...);
  };
  if (found == shapes.end() || !place || found->second.size() != 2 || place->name == "token_embd.weight" ||
      place->name == "position_embd.weight") {
    refuse(
        " must belong to a matrix of the model other than an embedding, but does not; leave it out of the "
        "targets");
  }
  std::vector<int64_t> shape = found->second;
  if (place->stored == Stored::kTransposed) std::swap(shape[0], shape[1]);
  const at::Tensor &a = adapter.a, &b = adapter.b;
  if (a.dim() != 2 || b.dim() != 2 || a.size(0) != b.size(1) || a.size(1) != shape[1] ||
      b.size(0) != shape[0]) {
    refuse(" must be of the shapes [rank, ", shape[1], "] and [", shape[0], ", rank], but is of ",
           util::shape_text(a.sizes().vec()), " and ", util::shape_text(b.sizes().vec()),
           "; give the adapter of this model");
  }
  return *place;
}

}  // namespace

AdapterFile write_adapter(const AdapterRequest& request, const std::vector<AdapterTensors>& adapters) {
  FSDP_CHECK(!is_quantised(request.type));
  if (!request.overwrite) checkpoint::refuse_existing(request.output);
  const nn::ModelOptions options = checkpoint::options_from_hugging_face(request.model_config, request.where);
  const GgufForm& form = form_of(request.model_config, options, request.where);
  const Shapes shapes = nn::weight_shapes(options);
  std::vector<Tensor> tensors;
  std::vector<at::Tensor> contents;
  std::map<std::string, at::Tensor> stacks;
  const auto add = [&](const std::string& weight, const NamedStorage& place, const char* suffix,
                       at::Tensor content) {
    std::vector<int64_t> shape = content.sizes().vec();
    const std::string name = place.name + suffix;
    if (place.stored == Stored::kStacked) {
      // llama.cpp wants the adapters of all experts; zeros are none.
      shape.insert(shape.begin(), options.num_experts);
      const auto [found, is_new] = stacks.try_emplace(name);
      at::Tensor& stack = found->second;
      if (is_new) stack = at::zeros(shape, at::TensorOptions(at::kFloat));
      if (stack.sizes() != shape) {
        fail(ErrorKind::kCheckpoint, "the adapter of ", weight, " must have the rank of the others in ",
             place.name, ", but has another; merge the adapters into the model with `merge`");
      }
      stack.select(0, place.expert).copy_(content);
      if (!is_new) return;
      content = stack;
    }
    tensors.push_back({.name = name, .shape = std::move(shape), .type = request.type});
    contents.push_back(std::move(content));
  };
  for (const AdapterTensors& adapter : adapters) {
    const NamedStorage place = checked_place(form, shapes, adapter);
    // A transposed weight has the same linear map; only the order of B's rows differs.
    const bool transposed = place.stored == Stored::kTransposed;
    const at::Tensor b = transposed ? adapter.b : to_theirs(adapter.b, place.stored, options);
    add(adapter.weight, place, ".lora_a", adapter.a);
    add(adapter.weight, place, ".lora_b", b);
  }
  Writer writer(request.output,
                {{"general.architecture", std::string(form.architecture)},
                 {"general.type", std::string("adapter")},
                 {"general.name", request.output.stem().string()},
                 {"general.file_type", traits_of(request.type).file_type.value()},
                 {"adapter.type", std::string("lora")},
                 {"adapter.lora.alpha", static_cast<float>(request.alpha)}},
                std::move(tensors));
  for (size_t i = 0; i < contents.size(); ++i) {
    const at::Tensor bytes = encoded(contents[i].detach().contiguous().view({-1}), request.type,
                                     writer.tensors()[i].name, request.saturate);
    writer.append(bytes.const_data_ptr(), bytes.numel());
  }
  writer.finish();
  return {.tensors = static_cast<int64_t>(contents.size()),
          .bytes = static_cast<int64_t>(std::filesystem::file_size(request.output))};
}

AdapterFile export_adapter(const AdapterExport& request) {
  if (is_quantised(request.type)) {
    fail(ErrorKind::kUsage, "the `type` of adapters must be f32, f16 or bf16, but is ",
         util::name_of(request.type), "; llama.cpp can add them to a quantised model");
  }
  const checkpoint::StoredAdapter stored = checkpoint::open_adapter(request.checkpoint_folder);
  const nn::LoraOptions& lora = stored.description.lora;
  const auto model = checkpoint::described_model(request.checkpoint_folder);
  if (!model) {
    fail(
        ErrorKind::kCheckpoint, request.checkpoint_folder.string(),
        " must be a checkpoint, which describes the model of its adapters, but describes none; name a run or "
        "one of its steps");
  }
  if (lora.dora) {
    fail(ErrorKind::kUsage, "llama.cpp has no adapters with magnitudes, but those of ", stored.where,
         " were trained with lora.dora; merge them into the model with `merge`");
  }
  const auto read = [&](const std::string& layer, nn::LoraPart part) {
    const std::string& name = stored.names.at(nn::lora_parameter(layer, part));
    const at::Tensor values = at::empty(stored.weights.shape(name), at::TensorOptions(at::kFloat));
    stored.weights.read_into(name, values);
    return values;
  };
  std::vector<AdapterTensors> adapters;
  for (const std::string& layer : stored.description.layers) {
    adapters.push_back({layer + ".weight", read(layer, nn::LoraPart::kA), read(layer, nn::LoraPart::kB)});
  }
  return write_adapter({.output = request.output,
                        .model_config = model->config,
                        .where = model->where,
                        .alpha = nn::lora_scale(lora) * static_cast<double>(lora.rank),
                        .type = request.type,
                        .saturate = request.saturate,
                        .overwrite = request.overwrite},
                       adapters);
}

}  // namespace fsdp::gguf
