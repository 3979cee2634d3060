#include "data/tokens/keyed_file.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "base/util/error.h"
#include "data/tokens/data_identity.h"

namespace fsdp::data {
namespace {

constexpr int64_t kMaxKeyBytes = int64_t{1} << 20;

/// Returns the first line of the file; empty if there is none.
std::string_view first_line(const MappedFile& file) {
  const std::string_view head(file.data(), static_cast<size_t>(std::min(file.size_bytes(), kMaxKeyBytes)));
  const size_t end = head.find('\n');
  return end == std::string_view::npos ? std::string_view() : head.substr(0, end);
}

/// Returns the difference of two keys in words; empty if there is none.
std::string difference_of_keys(const nlohmann::json& recorded, const nlohmann::json& expected,
                               const std::vector<std::string>& options) {
  if (const auto data = difference(recorded.value("data", nlohmann::json()), expected["data"])) {
    return "is of other data: " + *data;
  }
  for (const std::string& name : options) {
    const nlohmann::json found = recorded.value(name, nlohmann::json());
    if (found != expected[name]) {
      return concat("is for ", name, " = ", found.dump(), ", but the run has ", expected[name].dump());
    }
  }
  return "";
}

}  // namespace

void write_key(OutputFile& file, const nlohmann::json& key, const std::string& model) {
  nlohmann::json head = key;
  head["model"] = model;
  const std::string line = head.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  file.append(line.data(), static_cast<int64_t>(line.size()));
}

void require_keyed_file(const std::string& path, const std::string& what) {
  if (std::filesystem::exists(path)) return;
  fail(ErrorKind::kData, what, " = \"stored\" needs the file ", path, ", which does not exist; ",
       kComputeLogProbs);
}

int64_t read_key(const MappedFile& file, const nlohmann::json& key, const std::vector<std::string>& options,
                 int64_t bytes) {
  const std::string_view line = first_line(file);
  const auto recorded = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!recorded.is_object() || recorded.value("format", nlohmann::json()) != key["format"]) {
    file.refuse("does not begin with the line that describes it", kComputeLogProbs);
  }
  if (const std::string differs = difference_of_keys(recorded, key, options); !differs.empty()) {
    fail(ErrorKind::kData, file.path(), " ", differs, "; ", kComputeLogProbs);
  }
  const int64_t begin = static_cast<int64_t>(line.size()) + 1;
  if (file.size_bytes() != begin + bytes) {
    file.refuse(concat("must have ", begin + bytes, " bytes, but has ", file.size_bytes()), kComputeLogProbs);
  }
  return begin;
}

}  // namespace fsdp::data
