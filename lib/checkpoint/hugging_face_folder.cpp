#include "checkpoint/hugging_face_folder.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>

#include "checkpoint/inherited_config.h"
#include "checkpoint/manifest.h"
#include "util/error.h"
#include "util/file.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
using util::ErrorKind;
using util::fail;

namespace {

std::string part_name(size_t part, size_t parts) {
  char name[80];
  std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", part, parts);
  return name;
}

/// Whether a name is one of part_name()'s.
bool is_part_name(const std::string& name) {
  size_t part = 0, parts = 0;
  return std::sscanf(name.c_str(), "model-%zu-of-%zu.safetensors", &part, &parts) == 2 &&
         name == part_name(part, parts);
}

}  // namespace

HuggingFaceFolder plan_hugging_face_folder(const std::vector<TensorInfo>& infos, int64_t max_file_bytes) {
  std::vector<std::vector<TensorInfo>> parts(1);
  int64_t total_bytes = 0, part_bytes = 0;
  for (const TensorInfo& info : infos) {
    int64_t bytes = bytes_of(info);
    if (max_file_bytes > 0 && !parts.back().empty() && part_bytes + bytes > max_file_bytes) {
      parts.emplace_back();
      part_bytes = 0;
    }
    parts.back().push_back(info);
    part_bytes += bytes;
    total_bytes += bytes;
  }
  HuggingFaceFolder folder;
  if (parts.size() == 1) {
    folder.files.emplace_back(kSingleFileName, std::move(parts.front()));
    return folder;
  }
  nlohmann::json map = nlohmann::json::object();
  for (size_t i = 0; i < parts.size(); ++i) {
    std::string name = part_name(i + 1, parts.size());
    for (const TensorInfo& info : parts[i]) map[info.name] = name;
    folder.files.emplace_back(name, std::move(parts[i]));
  }
  folder.index.emplace();
  (*folder.index)["metadata"] = {{"total_size", total_bytes}};
  (*folder.index)["weight_map"] = map;
  return folder;
}

bool is_weights_file(const std::string& name) {
  return name == kIndexFileName || name == kSingleFileName || is_part_name(name);
}

std::string config_text(nlohmann::json config, const std::vector<TensorInfo>& infos) {
  bool one_type = !infos.empty() && std::all_of(infos.begin(), infos.end(), [&](const TensorInfo& info) {
    return info.dtype == infos.front().dtype;
  });
  if (config.is_object() && one_type) set_dtype(config, infos.front().dtype);
  return config.dump(2) + "\n";
}

int64_t parse_size(const std::string& text) {
  constexpr std::array<std::pair<std::string_view, int64_t>, 7> kUnits = {{{"", 1},
                                                                           {"KB", 1'000},
                                                                           {"MB", 1'000'000},
                                                                           {"GB", 1'000'000'000},
                                                                           {"KiB", int64_t{1} << 10},
                                                                           {"MiB", int64_t{1} << 20},
                                                                           {"GiB", int64_t{1} << 30}}};
  int64_t value = 0, bytes = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  for (const auto& [name, factor] : kUnits) {
    if (error == std::errc() && unit == name && value > 0 && !__builtin_mul_overflow(value, factor, &bytes)) {
      return bytes;
    }
  }
  fail(ErrorKind::kUsage, "expected a size such as 5GB or 500MiB and found \"", text, "\"");
}

}  // namespace fsdp::checkpoint
