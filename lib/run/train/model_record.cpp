#include "run/train/model_record.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/objects/local_copy.h"
#include "base/util/error.h"
#include "base/util/extension.h"
#include "base/util/file.h"
#include "base/util/log.h"
#include "data/tokenizers/gguf_tokenizer.h"
#include "data/tokenizers/tokenizer.h"
#include "model/families/architectures.h"
#include "setup/config/model_description.h"
#include "state/description/described_model.h"
#include "state/hugging_face/hugging_face_config.h"
#include "state/manifest/digest.h"
#include "state/manifest/manifest.h"
#include "state/weights/weights.h"

namespace fsdp::train {
namespace fs = std::filesystem;
using checkpoint::ModelFiles;
using nlohmann::json;

namespace {

/// Returns the origin's description.
struct FoundModel {
  json config;
  fs::path files;  ///< the folder of its small files, or a GGUF file; may be empty or not exist
};

FoundModel found_at(const config::Config& config, const ModelOrigin& origin) {
  for (const fs::path& folder : {origin.resume, origin.init}) {
    if (folder.empty()) continue;
    return {.config = checkpoint::read_manifest(folder).model, .files = checkpoint::kept_model_files(folder)};
  }
  if (config.model.init_from.empty()) return {};
  const auto stored = checkpoint::described_model(config.model.init_from);
  if (!stored) return {};
  FoundModel found{.config = stored->config, .files = stored->folder};
  const auto format = checkpoint::format_of(config.model.init_from);
  if (format == checkpoint::WeightsFormat::kCheckpoint) {
    found.files = checkpoint::kept_model_files(stored->folder);
  } else if (format == checkpoint::WeightsFormat::kGguf) {
    found.files = config.model.init_from;
  } else if (const auto dtype = checkpoint::common_dtype(checkpoint::open_weights(config.model.init_from))) {
    checkpoint::set_dtype(found.config, *dtype);  // config.json may lack it
  }
  return found;
}

bool same_content(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return fs::file_size(a, error) == fs::file_size(b, error) && !error &&
         util::read_file(a) == util::read_file(b);
}

/// Returns the files of data.tokenizer, if it is a path.
ModelFiles tokenizer_files(const std::string& tokenizer) {
  std::error_code error;
  const fs::path path = objects::local_copy(tokenizer);
  if (tokenizer == "bytes" || !fs::exists(path, error)) return {};
  ModelFiles files;
  const fs::path folder = fs::is_directory(path, error) ? path
                          : path.has_parent_path()      ? path.parent_path()
                                                        : fs::path(".");
  for (const auto& [name, file] : checkpoint::model_files_in(folder)) {
    if (checkpoint::is_tokenizer_file(name)) files.emplace(name, file);
  }
  if (folder == path || files.contains(path.filename().string())) {
    // GPT-2's original names of files that transformers has renamed.
    for (const auto& [before, now] : {std::pair("encoder.json", "vocab.json"), {"vocab.bpe", "merges.txt"}}) {
      if (auto file = files.extract(before)) {
        file.key() = now;
        files.insert(std::move(file));
      }
    }
    return files;
  }
  // A tokenizer with an unusual file name: the files beside it may belong to another tokenizer.
  const std::string file = path.filename().string();
  const bool is_model =
      util::extension_of(path) == ".tiktoken" || (file + ".").find(".model.") != std::string::npos;
  return {{is_model                                   ? "tokenizer.model"
           : file.find("tekken") != std::string::npos ? "tekken.json"
                                                      : "tokenizer.json",
           path}};
}

/// Returns the tokenizer files of `own` and all other files of the origin. If the tokenizers are the same,
/// returns all files of the origin, which may have more.
ModelFiles chosen_files(ModelFiles own, const ModelFiles& origin) {
  bool same = own.empty();
  for (const auto& [name, path] : own) {
    const auto there = origin.find(name);
    if (name == "tokenizer_config.json" || there == origin.end()) continue;
    same = same_content(path, there->second);
    if (!same) break;
  }
  if (same) return origin;
  for (const auto& [name, path] : origin) {
    if (!checkpoint::is_tokenizer_file(name)) own.emplace(name, path);
  }
  return own;
}

/// Returns the text of an added token of tokenizer.json; empty if the id is no added token's.
std::string added_token(const fs::path& tokenizer_json, int64_t id) {
  std::string text;
  const auto look_at = [&](const std::string& key, const json& tokens) {
    if (key != "added_tokens") return;
    for (const json& token : tokens) {
      if (token.is_object() && token.value("id", int64_t{-1}) == id) text = token.value("content", "");
    }
  };
  try {
    checkpoint::read_json_members(util::read_file(tokenizer_json), {}, tokenizer_json.string(), look_at);
  } catch (const util::Error&) {
    return "";  // reported where the tokenizer is used
  }
  return text;
}

/// Returns tokenizer_config.json, which transformers' AutoTokenizer needs beside a vocabulary.
json tokenizer_config(const config::Config& config, const ModelFiles& files,
                      std::optional<int64_t> end_of_text) {
  json result = {{"model_max_length", config.model.max_position_embeddings},
                 {"clean_up_tokenization_spaces", false}};
  const auto vocabulary = files.find("tokenizer.json");
  if (vocabulary == files.end()) {
    result["tokenizer_class"] = files.contains("tokenizer.model") ? "LlamaTokenizer" : "GPT2Tokenizer";
    if (files.contains("tokenizer.model")) result.update({{"add_bos_token", false}, {"legacy", false}});
    return result;
  }
  result["tokenizer_class"] = "PreTrainedTokenizerFast";
  const std::string text = end_of_text ? added_token(vocabulary->second, *end_of_text) : "";
  // A text begins after the end of another one in training.
  if (!text.empty()) result.update({{"eos_token", text}, {"bos_token", text}});
  return result;
}

std::optional<int64_t> end_of_text(const std::string& tokenizer) {
  if (tokenizer == "bytes") return std::nullopt;
  try {
    return data::make_tokenizer(tokenizer)->end_of_text();
  } catch (const util::Error& error) {
    util::log_warning(
        concat("checkpoints of this run will not record which token ends a text: ", error.what()));
    return std::nullopt;
  }
}

/// Returns the path, in place of a GGUF file's the folder of the files that it holds.
fs::path in_files(const fs::path& path, std::optional<data::UnpackedTokenizer>& unpacked) {
  return data::holds_tokenizer(path.string()) ? unpacked.emplace(path).folder() : path;
}

void keep_files(const config::Config& config, const fs::path& origin, const json& model) {
  const fs::path kept = fs::path(config.run.output_dir) / checkpoint::kModelFilesName;
  std::error_code error;
  // The files that the run began with stay: their source may have changed since.
  if (!origin.empty() && fs::equivalent(origin, kept, error)) return;
  std::optional<data::UnpackedTokenizer> of_tokenizer, of_origin;
  const fs::path tokenizer = in_files(config.data.tokenizer, of_tokenizer);
  const ModelFiles files = chosen_files(tokenizer_files(tokenizer.string()),
                                        checkpoint::model_files_in(in_files(origin, of_origin)));
  const fs::path staged = util::temporary_name(kept);
  checkpoint::copy_model_files(files, staged);
  const bool has_tokenizer = std::any_of(
      files.begin(), files.end(), [](const auto& file) { return checkpoint::is_tokenizer_file(file.first); });
  if (has_tokenizer && !files.contains("tokenizer_config.json")) {
    std::optional<int64_t> end;
    if (const auto id = model.find("eos_token_id"); id != model.end() && id->is_number_integer()) {
      end = id->get<int64_t>();
    }
    util::write_file_atomically(staged / "tokenizer_config.json",
                                tokenizer_config(config, files, end).dump(2) + "\n");
  }
  fs::remove_all(kept, error);  // of another run in this folder
  if (!files.empty()) util::rename_and_sync(staged, kept);
}

}  // namespace

json remember_model(const config::Config& config, const ModelOrigin& origin) {
  const FoundModel found = found_at(config, origin);
  json model = nn::is_built_in_architecture(config.model.architecture)
                   ? checkpoint::inherited_config(config.model, found.config)
                   : config::model_description(config);
  if (!model.contains("eos_token_id")) {
    if (const auto id = end_of_text(config.data.tokenizer)) {
      model["eos_token_id"] = *id;
      if (!model.contains("bos_token_id")) model["bos_token_id"] = *id;
    }
  }
  keep_files(config, found.files, model);
  return model;
}

}  // namespace fsdp::train
