#include "gguf/adapter.h"

#include <map>
#include <system_error>
#include <utility>

#include "checkpoint/hugging_face_config.h"
#include "checkpoint/manifest.h"
#include "checkpoint/staged_output.h"
#include "gguf/families.h"
#include "gguf/quantise.h"
#include "gguf/writer.h"
#include "util/error.h"

namespace fsdp::gguf {
using util::concat;
using util::ErrorKind;
using util::fail;

namespace {

using Shapes = std::map<std::string, std::vector<int64_t>>;

/// Where the adapter's weight is in GGUF.
NamedStorage checked_place(const Family& family, const Shapes& shapes, const AdapterTensors& adapter) {
  const auto found = shapes.find(adapter.weight);
  const auto place = their_tensor(family, adapter.weight);
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
           checkpoint::shape_text(a.sizes().vec()), " and ", checkpoint::shape_text(b.sizes().vec()),
           "; give the adapter of this model");
  }
  return *place;
}

}  // namespace

int64_t write_adapter(const AdapterRequest& request, const std::vector<AdapterTensors>& adapters) {
  FSDP_CHECK(!is_quantised(request.type));
  if (!request.overwrite) {
    checkpoint::refuse_existing(request.output, "choose another output or replace it with `overwrite`");
  }
  const nn::ModelOptions options = checkpoint::options_from_hugging_face(request.model_config, request.where);
  const Family& family = family_of(request.model_config, options, request.where);
  const Shapes shapes = checkpoint::hugging_face_shapes(options);
  std::vector<Tensor> tensors;
  std::vector<at::Tensor> contents;
  for (const AdapterTensors& adapter : adapters) {
    const NamedStorage place = checked_place(family, shapes, adapter);
    // A transposed weight has the same linear map; only the order of B's rows differs.
    const bool permuted = place.stored == Stored::kQueryHeads || place.stored == Stored::kKeyHeads;
    const at::Tensor b = permuted ? to_theirs(adapter.b, place.stored, options) : adapter.b;
    for (const auto& [suffix, content] : {std::pair(".lora_a", adapter.a), std::pair(".lora_b", b)}) {
      tensors.push_back({.name = place.name + suffix, .shape = content.sizes().vec(), .type = request.type});
      contents.push_back(content);
    }
  }
  Writer writer(request.output,
                {{"general.architecture", std::string(family.architecture)},
                 {"general.type", std::string("adapter")},
                 {"general.name", request.output.stem().string()},
                 {"general.file_type", traits_of(request.type).file_type},
                 {"adapter.type", std::string("lora")},
                 {"adapter.lora.alpha", static_cast<float>(request.alpha)}},
                std::move(tensors));
  for (size_t i = 0; i < contents.size(); ++i) {
    const at::Tensor bytes =
        encoded(contents[i].detach().contiguous().view({-1}), request.type, writer.tensors()[i].name);
    writer.append(bytes.const_data_ptr(), bytes.numel());
  }
  writer.finish();
  return static_cast<int64_t>(std::filesystem::file_size(request.output));
}

}  // namespace fsdp::gguf
