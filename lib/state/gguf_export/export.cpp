#include "state/gguf_export/export.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/text.h"
#include "model/families/families.h"
#include "state/gguf/forms.h"
#include "state/gguf/rotary_scaling.h"
#include "state/gguf_export/quantise.h"
#include "state/gguf_export/tokenizer.h"
#include "state/gguf_export/writer.h"
#include "state/hugging_face/hugging_face_config.h"
#include "state/manifest/manifest.h"
#include "state/manifest/staged_output.h"
#include "state/weights/gguf_layout.h"
#include "state/weights/shard_set.h"

namespace fsdp::gguf {
namespace fs = std::filesystem;

namespace {

constexpr uint32_t kQuantisationVersion = 2;

/// "135M", "1.2B", "8x7.2B" (with experts), as llama.cpp's converter writes it.
std::string size_label(int64_t parameters, int64_t experts) {
  constexpr std::pair<double, char> kUnits[] = {{1e12, 'T'}, {1e9, 'B'}, {1e6, 'M'}, {1e3, 'K'}};
  const auto count = static_cast<double>(parameters);
  const auto* unit = std::find_if(std::begin(kUnits), std::end(kUnits) - 1,
                                  [count](const auto& entry) { return count > entry.first; });
  const double scaled = count / unit->first;
  const int digits = std::lround(scaled) < 1 ? 2 : std::lround(scaled) < 10 ? 1 : 0;
  const std::string text = util::printed("%.*f%c", digits, scaled, unit->second);
  return experts > 0 ? concat(experts, "x", text) : text;
}

/// A tensor of the file and where it comes from.
struct GgufSource {
  std::vector<std::string> names = {};  ///< names in the weights: one, or one for each expert
  Stored stored = Stored::kSame;
  std::vector<float> values = {};  ///< the tensor's elements, if the weights have none
};

struct GgufPlan {
  const GgufForm* form;
  TensorType type;
  std::vector<Tensor> tensors;
  std::vector<GgufSource> sources;
  int64_t parameters = 0;  ///< number of parameters, counting one expert of each layer
  int64_t bytes = 0;
};

/// The type of a tensor in a file of matrices of type `type`.
TensorType type_for(const Tensor& tensor, TensorType type, bool makes_logits) {
  const bool plain = tensor.shape.size() < 2 || !tensor.name.ends_with(".weight") ||
                     tensor.name.ends_with("_norm.weight") || tensor.name == "position_embd.weight" ||
                     tensor.name.ends_with(".ffn_gate_inp.weight");
  if (plain) return TensorType::kF32;
  if (type == TensorType::kQ4_0 && makes_logits) type = TensorType::kQ8_0;
  return tensor.shape.back() % traits_of(type).block_elements == 0 ? type : TensorType::kF16;
}

TensorType chosen_type(const checkpoint::StoredModel& model, const ExportRequest& request) {
  if (request.type) return *request.type;
  auto dtype = checkpoint::dtype_of_config(model.config);
  if (!dtype) dtype = checkpoint::common_dtype(model.weights);
  return dtype ? type_of(*dtype).value_or(TensorType::kF32) : TensorType::kF32;
}

GgufPlan plan_of(const checkpoint::StoredModel& model, const ExportRequest& request) {
  if (!model.plugin_config.empty()) {
    fail(ErrorKind::kUsage, "the model must be one that llama.cpp computes, but is ",
         model.options.architecture, " of a plug-in in ", model.where,
         "; fsdp-ckpt consolidate writes its weights");
  }
  GgufPlan plan{.form = &form_of(model.config, model.options, model.where),
                .type = chosen_type(model, request),
                .tensors = {},
                .sources = {}};
  const auto add = [&](Tensor tensor, GgufSource source) {
    plan.bytes += bytes_of(tensor);
    plan.tensors.push_back(std::move(tensor));
    plan.sources.push_back(std::move(source));
  };
  for (auto& [name, divisors] : divisor_tensors(model.options)) {
    add({.name = name, .shape = {std::ssize(divisors)}}, {.values = divisors});
  }
  std::map<std::string, size_t> stacks;  ///< their places in the plan
  for (const auto& [name, stored_name] : model.names) {
    auto theirs = their_tensor(*plan.form, name);
    FSDP_CHECK(theirs, name);
    Tensor tensor{.name = std::move(theirs->name), .shape = model.weights.shape(stored_name)};
    if (theirs->stored == Stored::kTransposed) std::reverse(tensor.shape.begin(), tensor.shape.end());
    std::vector<std::string> names = {stored_name};
    if (theirs->stored == Stored::kStacked) {
      const auto expert = static_cast<size_t>(theirs->expert);
      const auto [stack, is_new] = stacks.try_emplace(tensor.name, plan.sources.size());
      if (!is_new) {
        plan.sources[stack->second].names[expert] = stored_name;
        continue;
      }
      tensor.shape.insert(tensor.shape.begin(), model.options.num_experts);
      names.assign(static_cast<size_t>(model.options.num_experts), "");
      names[expert] = stored_name;
    }
    plan.parameters += model.weights.numel(stored_name);
    const bool makes_logits =
        tensor.name == (model.options.tie_word_embeddings ? "token_embd.weight" : "output.weight");
    tensor.type = type_for(tensor, plan.type, makes_logits);
    add(std::move(tensor), {std::move(names), theirs->stored});
  }
  return plan;
}

Metadata metadata_of(const checkpoint::StoredModel& model, const GgufPlan& plan,
                     const ExportRequest& request) {
  Metadata metadata = {{"general.architecture", std::string(plan.form->architecture)},
                       {"general.type", std::string("model")},
                       {"general.name", request.output.stem().string()},
                       {"general.size_label", size_label(plan.parameters, model.options.num_experts)},
                       {"general.file_type", traits_of(plan.type).file_type.value()},
                       {"general.quantization_version", kQuantisationVersion}};
  describe_model(*plan.form, model.options, metadata);
  describe_tokenizer(request.tokenizer, model.options.vocab_size, model.config, metadata);
  return metadata;
}

void write_tensor(const checkpoint::Weights& weights, const GgufSource& source, const Tensor& tensor,
                  const nn::ModelOptions& options, bool saturate, Writer& writer,
                  util::ByteCounter& counter) {
  std::string name;
  const auto append = [&](const at::Tensor& elements) {
    const at::Tensor bytes = encoded(elements, tensor.type, concat("the weight ", name), saturate);
    writer.append(bytes.const_data_ptr(), bytes.numel());
    counter.add(bytes.numel());
  };
  if (source.names.empty()) {
    at::Tensor values = at::empty({std::ssize(source.values)}, at::TensorOptions().dtype(at::kFloat));
    std::copy(source.values.begin(), source.values.end(), values.mutable_data_ptr<float>());
    append(values);
    return;
  }
  const bool is_same = source.stored == Stored::kSame || source.stored == Stored::kStacked;
  for (const std::string& each : source.names) {
    name = each;
    const checkpoint::TensorInfo& info = weights.info(name);
    if (is_same) {
      // Slices are whole blocks, since their size is a power of two.
      weights.stream(name, 0, weights.numel(name), info.dtype, append);
      continue;
    }
    at::Tensor whole = at::empty(info.shape, at::TensorOptions().dtype(info.dtype));
    weights.read_into(name, whole);
    append(to_theirs(whole, source.stored, options).reshape({-1}));
  }
}

}  // namespace

ExportResult export_model(const checkpoint::StoredModel& model, const ExportRequest& request) {
  std::error_code error;
  if (fs::is_directory(request.output, error)) {
    fail(ErrorKind::kUsage, "the output must be a file, but is the folder ", request.output.string(),
         "; give a name that ends in .gguf");
  }
  if (!request.overwrite) checkpoint::refuse_existing(request.output);
  GgufPlan plan = plan_of(model, request);
  const Metadata metadata = metadata_of(model, plan, request);
  util::make_writable_folder(request.output.has_parent_path() ? request.output.parent_path() : ".");
  if (fs::exists(model.folder / checkpoint::kManifestName, error)) {
    checkpoint::ShardedSource(model.folder).verify_all(request.progress);
  }
  util::ByteCounter counter(request.progress, "writing", plan.bytes);
  Writer writer(request.output, metadata, std::move(plan.tensors));
  for (size_t i = 0; i < plan.sources.size(); ++i) {
    write_tensor(model.weights, plan.sources[i], writer.tensors()[i], model.options, request.saturate, writer,
                 counter);
  }
  // Another process may have created the file in the meantime.
  if (!request.overwrite) checkpoint::refuse_existing(request.output);
  writer.finish();
  const auto* vocabulary =
      std::find_if(metadata.data(), metadata.data() + metadata.size(),
                   [](const auto& entry) { return entry.first == "tokenizer.ggml.model"; });
  return {.output = request.output,
          .type = plan.type,
          .tokenizer = std::get<std::string>(vocabulary->second),
          .tensors = static_cast<int64_t>(writer.tensors().size()),
          .bytes = static_cast<int64_t>(fs::file_size(request.output))};
}

}  // namespace fsdp::gguf
