#include "ckpt_command.h"

#include <iostream>

#include "base/dtype/dtype.h"
#include "base/util/error.h"
#include "base/util/log.h"
#include "base/util/text.h"
#include "state/manifest/folders.h"
#include "state/manifest/manifest.h"

namespace fsdp::apps {
namespace fs = std::filesystem;
using nlohmann::json;
using util::ErrorKind;

fs::path chosen_checkpoint(const std::string& path) {
  std::error_code error;
  if (fs::exists(fs::path(path) / checkpoint::kManifestName, error)) return path;  // whole or not
  fs::path folder = checkpoint::checkpoint_folder(path);
  if (folder != fs::path(path)) util::log_info("using the newest complete checkpoint, " + folder.string());
  return folder;
}

std::optional<c10::ScalarType> chosen_dtype(const Arguments& arguments) {
  if (arguments.dtype.empty()) return std::nullopt;
  return util::dtype_from_name(arguments.dtype);
}

int64_t chosen_max_bytes(const Arguments& arguments) {
  return arguments.max_shard_size.empty() ? 0 : checkpoint::parse_size(arguments.max_shard_size);
}

std::string text_of(const json& value) {
  // The output is ASCII, which is printable as it is.
  return value.dump(2, ' ', true, json::error_handler_t::replace) + "\n";
}

void refuse_options(const std::vector<std::pair<const char*, std::string>>& options, const char* needed) {
  for (const auto& [option, value] : options) {
    if (value.empty()) continue;
    util::fail(ErrorKind::kUsage, option, ": expected only with ", needed, "; found \"", value,
               "\"; leave it out");
  }
}

int print(const checkpoint::ConsolidateResult& result, bool as_json, const char* about_config) {
  if (as_json) {
    std::cout << text_of({{"output", result.output.string()},
                          {"config", result.config ? json(result.config->string()) : json()},
                          {"model_files", result.model_files},
                          {"files", result.files},
                          {"tensors", result.tensors},
                          {"bytes", result.bytes}});
    return 0;
  }
  std::cout << result.output.string() << ": " << result.tensors << " tensors, "
            << util::human_bytes(result.bytes);
  if (result.files > 1) std::cout << " in " << result.files << " files";
  std::cout << "\n";
  if (result.config) std::cout << result.config->string() << ": " << about_config << "\n";
  if (!result.model_files.empty()) {
    std::cout << "also copied, from the model that the run started from: "
              << util::join(result.model_files, ", ") << "\n";
  }
  return 0;
}

int print(const checkpoint::ShardedResult& result, bool as_json) {
  if (as_json) {
    std::cout << text_of({{"output", result.folder.string()},
                          {"files", result.files},
                          {"tensors", result.tensors},
                          {"bytes", result.bytes}});
    return 0;
  }
  std::cout << result.folder.string() << ": " << result.tensors << " tensors, "
            << util::human_bytes(result.bytes) << ", world size " << result.files << "\n";
  return 0;
}

}  // namespace fsdp::apps
