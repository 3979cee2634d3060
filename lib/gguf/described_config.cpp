// described_config(): a file's metadata as config.json, and what is refused in them.

#include <algorithm>
#include <charconv>
#include <set>
#include <string>

#include "gguf/families.h"
#include "util/error.h"

namespace fsdp::gguf {
using nlohmann::json;
using util::concat;
using util::ErrorKind;
using util::fail;

namespace {

constexpr const char* kRemedy = "; if it is right, give the model's config.json with `config`";

/// The shortest decimal number that rounds to this float: 1e-5, not 9.99999974e-06.
double decimal(float value) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof(text), value);
  FSDP_CHECK(error == std::errc());
  double number = 0;
  std::from_chars(text, end, number);
  return number;
}

json json_of(const Value& value) {
  if (const auto* number = std::get_if<uint32_t>(&value)) return *number;
  if (const auto* number = std::get_if<float>(&value)) return decimal(*number);
  if (const auto* flag = std::get_if<bool>(&value)) return *flag;
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  return nullptr;
}

std::string text_of(const json& value) { return value.dump(-1, ' ', true, json::error_handler_t::replace); }

/// Reads the keys of the architecture, and tells those that nothing has read.
class ArchitectureKeys {
 public:
  ArchitectureKeys(const Reader& file, const Family& family)
      : file_(file), prefix_(concat(family.architecture, ".")) {}

  json value(const std::string& key) {
    read_.insert(prefix_ + key);
    const auto found = file_.metadata().find(prefix_ + key);
    if (found == file_.metadata().end()) return nullptr;
    json value = json_of(found->second);
    if (value.is_null()) refuse(key, "must be one value of at most 32 bits, but is not");
    return value;
  }

  [[noreturn]] void refuse(const std::string& key, const std::string& what) const {
    fail(ErrorKind::kCheckpoint, file_.path().string(), ": \"", prefix_, key, "\" ", what, kRemedy);
  }

  void refuse_unread() const {
    for (const auto& [key, value] : file_.metadata()) {
      if (!key.starts_with(prefix_) || read_.contains(key)) continue;
      const json found = json_of(value);
      if (found == 0 || found == false) continue;
      fail(ErrorKind::kCheckpoint, file_.path().string(), ": \"", key, "\": ", text_of(found),
           " describes something that this version cannot compute", kRemedy);
    }
  }

 private:
  const Reader& file_;
  std::string prefix_;
  std::set<std::string> read_;
};

/// Scaling of the rotary positions, linear by the metadata or Llama 3's by a tensor.
void read_scaling(const Reader& file, const Family& family, ArchitectureKeys& keys, json& config) {
  const json type = keys.value("rope.scaling.type");
  json factor = keys.value("rope.scaling.factor");
  if (factor.is_null()) factor = keys.value("rope.scale_linear");
  for (const char* key : {"rope.scaling.original_context_length", "rope.scaling.finetuned"}) keys.value(key);
  if (!type.is_null() && type != "none" && type != "linear") {
    keys.refuse("rope.scaling.type", concat("must be \"none\" or \"linear\", but is ", text_of(type)));
  }
  if (factor.is_number() && factor != 0 && factor != 1 && type != "none") {
    config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", factor}};
  }
  const auto found = file.tensors().find(kRopeFrequencies);
  if (found == file.tensors().end()) return;
  const Tensor& tensor = found->second;
  constexpr int64_t kMost = 1 << 16;
  std::vector<float> divisors;
  if (tensor.type == TensorType::kF32 && tensor.shape.size() == 1 && tensor.shape[0] <= kMost) {
    divisors.resize(static_cast<size_t>(tensor.shape[0]));
    file.read(tensor, 0, bytes_of(tensor), divisors.data());
  }
  if (std::all_of(divisors.begin(), divisors.end(), [](float value) { return value == 1; }) &&
      !divisors.empty()) {
    return;
  }
  json scaling;
  const double theta = config.contains("rope_theta") ? config["rope_theta"].get<double>() : 10000;
  if (!family.scales_frequencies || config.contains("rope_scaling") ||
      !find_scaling(divisors, theta, scaling)) {
    fail(ErrorKind::kCheckpoint, file.path().string(), ": ", kRopeFrequencies,
         " must be the rotary scaling of Llama 3, but is another", kRemedy);
  }
  config["rope_scaling"] = scaling;
}

}  // namespace

json described_config(const Reader& file) {
  const std::string where = file.path().string();
  const auto* architecture = file.find<std::string>("general.architecture");
  const Family& family = family_of_architecture(architecture == nullptr ? "" : *architecture, where);
  json config = family.fixed;
  config["model_type"] = family.model_types.front();
  ArchitectureKeys keys(file, family);
  for (const KeyRule& rule : family.keys) {
    const json value = keys.value(rule.key);
    if (value.is_null()) {
      if (!rule.optional) keys.refuse(rule.key, "must be there, but is missing");
      continue;
    }
    const bool right = rule.kind == KeyRule::Kind::kSize ? value.is_number_unsigned() : value.is_number();
    if (!right) keys.refuse(rule.key, concat("must be a number, but is ", text_of(value)));
    if (config.contains(rule.config_key) && config[rule.config_key] != value) {
      keys.refuse(rule.key, concat("must be ", text_of(config[rule.config_key]),
                                   " as another key says, but is ", text_of(value)));
    }
    config[rule.config_key] = value;
  }
  // 0: none.
  if (config.contains("sliding_window")) {
    if (config["sliding_window"] == 0) {
      config.erase("sliding_window");
    } else if (family.model_types.size() > 1) {
      config["model_type"] = family.model_types[1];
    } else {
      keys.refuse("attention.sliding_window", "must be 0, the only value that is supported");
    }
  }
  keys.value("tensor_data_layout");
  read_scaling(file, family, keys, config);
  keys.refuse_unread();
  for (const FlagRule& flag : family.flags) config[flag.config_key] = file.tensors().contains(flag.tensor);
  config["tie_word_embeddings"] = !file.tensors().contains("output.weight");
  // Of the model; the metadata may be missing, or count the tokenizer's tokens.
  const auto embedding = file.tensors().find("token_embd.weight");
  if (embedding != file.tensors().end()) config["vocab_size"] = embedding->second.shape.front();
  constexpr std::pair<const char*, const char*> kIds[] = {{"bos_token_id", "bos_token_id"},
                                                          {"eos_token_id", "eos_token_id"},
                                                          {"padding_token_id", "pad_token_id"}};
  for (const auto& [theirs, ours] : kIds) {
    if (const auto* id = file.find<uint32_t>(concat("tokenizer.ggml.", theirs))) config[ours] = *id;
  }
  return config;
}

}  // namespace fsdp::gguf
