#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <tuple>
#include <unordered_set>

#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_types.h"
#include "checkpoint/step_folder.h"
#include "util/error.h"
#include "util/file.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;

namespace {

constexpr int64_t kHeaderAlignmentBytes = 8;

std::string_view type_name(c10::ScalarType dtype) {
  for (const auto& [name, type] : kSafetensorsTypes) {
    if (type == dtype) return name;
  }
  FSDP_CHECK(false, "safetensors cannot hold ", c10::toString(dtype));
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const fs::path& path, std::vector<TensorInfo> infos)
    : path_(path),
      temporary_(temporary_name(path)),
      infos_(std::move(infos)),
      file_(RawFile::create_locked(temporary_)) {
  std::sort(infos_.begin(), infos_.end(), [](const TensorInfo& a, const TensorInfo& b) {
    auto key = [](const TensorInfo& t) { return -static_cast<int64_t>(c10::elementSize(t.dtype)); };
    return std::make_tuple(key(a), std::cref(a.name)) < std::make_tuple(key(b), std::cref(b.name));
  });
  try {
    // Entry by entry: an ordered object of nlohmann looks through all its keys for each new one.
    std::unordered_set<std::string_view> names;
    std::string text = R"({"__metadata__":{"format":"pt"})";
    for (const TensorInfo& info : infos_) {
      auto itemsize_bytes = static_cast<int64_t>(c10::elementSize(info.dtype));
      int64_t numel = checked_numel(info.shape, itemsize_bytes);
      FSDP_CHECK(numel >= 0 && info.name != "__metadata__" && names.insert(info.name).second, info.name);
      int64_t begin = missing_bytes_;
      missing_bytes_ += numel * itemsize_bytes;
      const nlohmann::ordered_json entry = {
          {"dtype", type_name(info.dtype)}, {"shape", info.shape}, {"data_offsets", {begin, missing_bytes_}}};
      text += util::concat(",", nlohmann::json(info.name).dump(), ":", entry.dump());
    }
    text += "}";
    while (text.size() % kHeaderAlignmentBytes != 0) text += ' ';
    uint64_t length = text.size();  // little-endian, as this machine is
    file_.write(&length, sizeof(length));
    file_.write(text.data(), static_cast<int64_t>(text.size()));
  } catch (...) {
    std::error_code ignored;
    fs::remove(temporary_, ignored);
    throw;
  }
}

SafetensorsWriter::~SafetensorsWriter() {
  std::error_code ignored;
  if (!finished_) fs::remove(temporary_, ignored);
}

void SafetensorsWriter::append(const void* data, int64_t bytes) {
  FSDP_CHECK(bytes >= 0 && bytes <= missing_bytes_);
  file_.write(data, bytes);
  missing_bytes_ -= bytes;
}

void SafetensorsWriter::finish() {
  FSDP_CHECK(missing_bytes_ == 0 && !finished_);
  file_.sync();
  util::rename_and_sync(temporary_, path_);
  finished_ = true;
}

}  // namespace fsdp::checkpoint
