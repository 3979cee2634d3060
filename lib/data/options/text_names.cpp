#include "data/options/text_names.h"

#include <filesystem>

#include "base/util/extension.h"

namespace fsdp::data {
namespace {

std::string inner_extension(const std::string& path) { return util::extension_of(uncompressed_name(path)); }

}  // namespace

std::string uncompressed_name(const std::string& path) {
  if (!is_named_compressed(path)) return path;
  const bool is_tgz = util::extension_of(path) == ".tgz";
  return std::filesystem::path(path).replace_extension(is_tgz ? ".tar" : "").string();
}

bool is_named_compressed(const std::string& path) {
  const std::string extension = util::extension_of(path);
  return extension == ".gz" || extension == ".tgz" || extension == ".zst" || extension == ".zstd";
}

bool is_json_lines(const std::string& path) {
  const std::string extension = inner_extension(path);
  return extension == ".jsonl" || extension == ".jsonlines" || extension == ".jl" || extension == ".ndjson";
}

bool is_parquet(const std::string& path) { return util::extension_of(path) == ".parquet"; }

bool is_tar(const std::string& path) { return inner_extension(path) == ".tar"; }

bool is_mds(const std::string& path) { return inner_extension(path) == ".mds"; }

bool has_rows(const std::string& path) {
  return is_json_lines(path) || is_parquet(path) || is_tar(path) || is_mds(path);
}

bool is_text_name(const std::string& path) { return has_rows(path) || inner_extension(path) == ".txt"; }

bool may_be_text(const std::string& entry) {
  return is_text_name(entry) || util::extension_of(entry).empty() || entry.ends_with('/');
}

}  // namespace fsdp::data
