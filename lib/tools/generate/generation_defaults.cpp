#include "tools/generate/generation_defaults.h"

#include <nlohmann/json.hpp>
#include <type_traits>

#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/json.h"
#include "base/util/text.h"
#include "data/tokenizers/gguf_tokenizer.h"

namespace fsdp::generate {
namespace fs = std::filesystem;
namespace {

constexpr const char* kFile = "generation_config.json";
constexpr uintmax_t kMostBytes = 1 << 20;

[[noreturn]] void refuse(const fs::path& file, const std::string& what) {
  fail(ErrorKind::kCheckpoint, file.string(), " ", what, "; correct it or delete it");
}

nlohmann::json object_of(const fs::path& file) {
  std::error_code error;
  if (const uintmax_t bytes = fs::file_size(file, error); !error && bytes > kMostBytes) {
    refuse(file, concat("has ", bytes, " bytes, but may have ", kMostBytes));
  }
  try {
    nlohmann::json object = util::parse_json(util::read_file(file), {.deepest_level = 16});
    if (!object.is_object()) refuse(file, concat("must be a JSON object, but is a ", object.type_name()));
    return object;
  } catch (const util::JsonError& reason) {
    refuse(file, reason.what());
  }
}

/// Reads a number. Nothing if the key is missing or null.
template <typename Number>
std::optional<Number> number_of(const nlohmann::json& object, const char* key, const fs::path& file) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return std::nullopt;
  const bool fits = std::is_integral_v<Number> ? found->is_number_integer() : found->is_number();
  if (!fits) refuse(file, concat("must have a number as ", key, ", but has ", found->dump()));
  return found->get<Number>();
}

GenerationDefaults defaults_in_files(const checkpoint::DescribedModel& model) {
  GenerationDefaults defaults;
  for (const fs::path& folder : {model.folder, checkpoint::kept_model_files(model.folder)}) {
    std::error_code error;
    if (folder.empty() || !fs::is_regular_file(folder / kFile, error)) continue;
    defaults.file = folder / kFile;
    break;
  }
  if (defaults.file.empty()) return defaults;
  const nlohmann::json object = object_of(defaults.file);
  defaults.temperature = number_of<double>(object, "temperature", defaults.file);
  defaults.top_k = number_of<int64_t>(object, "top_k", defaults.file);
  defaults.top_p = number_of<double>(object, "top_p", defaults.file);
  if (const auto samples = object.find("do_sample"); samples != object.end() && *samples == false) {
    defaults.temperature = 0;
  }
  try {
    check_sampling(chosen_sampling({}, defaults));
  } catch (const util::Error& reason) {
    refuse(defaults.file, concat("has a value out of range: ", reason.what()));
  }
  if (const auto end = object.find("eos_token_id"); end != object.end()) {
    for (const auto& id : end->is_array() ? *end : nlohmann::json::array({*end})) {
      if (id.is_number_integer()) defaults.stop_ids.push_back(id.get<int64_t>());
    }
  }
  return defaults;
}

}  // namespace

GenerationDefaults generation_defaults(const checkpoint::DescribedModel& model) {
  if (!data::holds_tokenizer(model.where)) return defaults_in_files(model);
  checkpoint::DescribedModel in_files = model;
  return data::with_unpacked(model.where, [&](const std::string& files) {
    in_files.folder = files;
    GenerationDefaults defaults = defaults_in_files(in_files);
    defaults.file = model.where;
    return defaults;
  });
}

SamplingOptions chosen_sampling(const SamplingChoice& given, const GenerationDefaults& defaults,
                                const SamplingOptions& sampling) {
  const auto either = [](const auto& first, const auto& second, auto otherwise) {
    return first ? *first : second.value_or(otherwise);
  };
  return {.temperature = either(given.temperature, defaults.temperature, sampling.temperature),
          .top_k = either(given.top_k, defaults.top_k, sampling.top_k),
          .top_p = either(given.top_p, defaults.top_p, sampling.top_p)};
}

std::string defaults_text(const SamplingChoice& given, const GenerationDefaults& defaults) {
  std::vector<std::string> parts;
  const auto add = [&parts](const char* name, const auto& of_user, const auto& of_model) {
    if (!of_user && of_model) parts.push_back(concat(name, " ", *of_model));
  };
  add("temperature", given.temperature, defaults.temperature);
  add("top-k", given.top_k, defaults.top_k);
  add("top-p", given.top_p, defaults.top_p);
  return util::join(parts, ", ");
}

}  // namespace fsdp::generate
