#include "tools/generate/load.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/dtype/dtype.h"
#include "base/util/error.h"
#include "data/tokenizers/gguf_tokenizer.h"
#include "model/nn/buffers.h"
#include "model/nn/decoder.h"
#include "model/nn/parameter.h"
#include "setup/config/load.h"
#include "setup/config/model_description.h"
#include "state/description/described_model.h"

namespace fsdp::generate {
namespace fs = std::filesystem;
namespace {

bool holds_vocabulary(const fs::path& folder) {
  constexpr const char* kNames[] = {"tokenizer.json", "vocab.bpe", "merges.txt", "tekken.json",
                                    "tokenizer.model"};
  return std::any_of(std::begin(kNames), std::end(kNames), [&](const char* name) {
    std::error_code error;
    return fs::exists(folder / name, error);
  });
}

}  // namespace

at::ScalarType compute_type(const checkpoint::StoredModel& stored, const std::string& name) {
  if (name == "auto") {
    const bool bfloat16 = std::all_of(stored.names.begin(), stored.names.end(), [&](const auto& names) {
      return stored.weights.dtype(names.second) == at::kBFloat16;
    });
    return bfloat16 ? at::kBFloat16 : at::kFloat;
  }
  for (const char* known : {"float32", "bfloat16", "float16"}) {
    if (name == known) return util::dtype_from_name(name);
  }
  fail(ErrorKind::kUsage, "dtype must be auto, float32, bfloat16 or float16, but is \"", name,
       "\"; choose one of these");
}

checkpoint::StoredModel open_model(const std::filesystem::path& path, bool ema) {
  checkpoint::StoredModel stored = checkpoint::open_model(path, ema);
  stored.options = config::model_of(stored);
  return stored;
}

std::shared_ptr<nn::Stage> load_model(const checkpoint::StoredModel& stored, at::ScalarType dtype) {
  nn::ParameterType type(dtype);
  auto model = nn::make_decoder(stored.options);
  std::set<const void*> loaded;  // a tied weight is loaded under one of its names
  std::map<std::string, std::string> unused = stored.names;
  checkpoint::WeightMisfits misfits;
  const auto parameters = model->named_parameters();
  for (const auto& parameter : parameters) {
    parameter.value().set_requires_grad(false);
    unused.erase(parameter.key());
    const auto name = stored.names.find(parameter.key());
    if (name == stored.names.end()) continue;
    loaded.insert(parameter.value().unsafeGetTensorImpl());
    checkpoint::compare_shape(parameter.key(), stored.weights.info(name->second).shape,
                              parameter.value().sizes().vec(), misfits);
    if (misfits.misshapen.empty()) stored.weights.read_into(name->second, parameter.value());
  }
  for (const auto& [name, tensor] : nn::persistent_buffers(*model)) {
    unused.erase(name);
    const auto found = stored.names.find(name);
    if (found == stored.names.end()) {
      misfits.missing.push_back(name);
    } else {
      stored.weights.read_into(found->second, tensor);
    }
  }
  for (const auto& parameter : parameters) {
    if (!loaded.contains(parameter.value().unsafeGetTensorImpl())) misfits.missing.push_back(parameter.key());
  }
  for (const auto& [name, stored_name] : unused) misfits.unexpected.push_back(stored_name);
  misfits.refuse_any(stored.folder.string(), stored.where);
  return model;
}

std::unique_ptr<data::Tokenizer> find_tokenizer(const checkpoint::StoredModel& stored) {
  if (const auto name = tokenizer_name(stored)) return data::make_tokenizer(*name);
  fail(ErrorKind::kUsage, "there is no vocabulary in ", stored.folder.string(),
       " (tokenizer.json, ...) and no config.toml of a run beside it; give the tokenizer "
       "with `tokenizer`");
}

std::optional<std::string> tokenizer_name(const checkpoint::StoredModel& stored) {
  if (data::holds_tokenizer(stored.where)) return stored.where;
  for (const fs::path& folder : {stored.folder, checkpoint::kept_model_files(stored.folder)}) {
    if (!folder.empty() && holds_vocabulary(folder)) return folder.string();
  }
  std::error_code error;
  // Links such as RUN/best are in the run's folder, beside its config.
  for (const fs::path& run : {stored.folder, fs::absolute(stored.folder).lexically_normal().parent_path()}) {
    const fs::path config = run / "config.toml";
    if (fs::exists(config, error)) return config::load_resolved_config(config).data.tokenizer;
  }
  return std::nullopt;
}

std::vector<int64_t> stop_ids(const nlohmann::json& config, const data::Tokenizer& tokenizer) {
  std::vector<int64_t> ids;
  if (tokenizer.end_of_text()) ids.push_back(*tokenizer.end_of_text());
  const auto found = config.find("eos_token_id");
  if (found == config.end()) return ids;
  for (const auto& id : found->is_array() ? *found : nlohmann::json::array({*found})) {
    if (id.is_number_integer()) ids.push_back(id.get<int64_t>());
  }
  return ids;
}

std::vector<int64_t> encode_prompt(const data::Tokenizer& tokenizer, const std::string& text, bool begins) {
  std::vector<int64_t> ids;
  const std::vector<int64_t> begin = tokenizer.begin_of_text();
  if (!text.empty()) {
    tokenizer.encode(text, ids);
    const bool has_begin = ids.size() >= begin.size() && std::equal(begin.begin(), begin.end(), ids.begin());
    if (begins && !has_begin) ids.insert(ids.begin(), begin.begin(), begin.end());
  } else if (begins && !begin.empty()) {
    ids = begin;
  } else if (tokenizer.end_of_text()) {
    ids.push_back(*tokenizer.end_of_text());
  } else {
    tokenizer.encode("\n", ids);
  }
  return ids;
}

}  // namespace fsdp::generate
