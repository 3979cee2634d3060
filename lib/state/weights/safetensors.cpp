#include "state/weights/safetensors.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/shape.h"
#include "base/util/text.h"
#include "state/manifest/digest.h"
#include "state/manifest/manifest.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

/// The element types of safetensors that the toolkit stores, under the format's names.
constexpr std::array<std::pair<std::string_view, c10::ScalarType>, 10> kSafetensorsTypes{{
    {"F32", c10::ScalarType::Float},
    {"F16", c10::ScalarType::Half},
    {"BF16", c10::ScalarType::BFloat16},
    {"F64", c10::ScalarType::Double},
    {"I64", c10::ScalarType::Long},
    {"I32", c10::ScalarType::Int},
    {"I16", c10::ScalarType::Short},
    {"I8", c10::ScalarType::Char},
    {"U8", c10::ScalarType::Byte},
    {"BOOL", c10::ScalarType::Bool},
}};

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kLargestHeaderBytes = 100'000'000;  // the limit of the reference implementation
// Levels of {tensor: {shape: [...]}}. The number of values of an entry bounds the memory to read it.
constexpr util::JsonLimits kHeaderLimits{.deepest_level = 3, .most_values = 1'000'000};

std::string read_header(const util::RawFile& file) {
  const int64_t file_bytes = file.size_bytes();
  uint64_t length = 0;
  if (file_bytes < kLengthBytes) {
    fail(ErrorKind::kCheckpoint, file.path().string(), " has ", file_bytes,
         " bytes, too few for a safetensors file");
  }
  file.read_at(0, &length, kLengthBytes);
  if (length > kLargestHeaderBytes || length > static_cast<uint64_t>(file_bytes - kLengthBytes)) {
    fail(ErrorKind::kCheckpoint, file.path().string(), " gives ", length,
         " bytes as the length of its header, more than ",
         length > kLargestHeaderBytes ? "safetensors allows" : "the file has",
         "; it is not a safetensors file or is cut off");
  }
  std::string header(length, '\0');
  file.read_at(kLengthBytes, header.data(), static_cast<int64_t>(length));
  return header;
}

/// Reads a list of non-negative whole numbers. False if the value is anything else.
bool read_sizes(const json& value, std::vector<int64_t>& sizes) {
  if (!value.is_array()) return false;
  for (const json& size : value) {
    // nlohmann stores every whole number without a sign as unsigned.
    if (!size.is_number_unsigned() ||
        size.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return false;
    }
    sizes.push_back(size.get<int64_t>());
  }
  return true;
}

struct Extent {
  int64_t begin = 0, end = 0;         ///< byte offsets from the start of the data
  const std::string* name = nullptr;  ///< owned by the reader's table
};

SafetensorsReader::SafetensorsEntry parse_entry(const json& value, const std::string& where, Extent& extent) {
  SafetensorsReader::SafetensorsEntry entry;
  std::vector<int64_t> offsets;
  if (!value.is_object() || !value.contains("dtype") || !value["dtype"].is_string() ||
      !value.contains("shape") || !read_sizes(value["shape"], entry.shape) ||
      !value.contains("data_offsets") || !read_sizes(value["data_offsets"], offsets) || offsets.size() != 2) {
    fail(ErrorKind::kCheckpoint, where,
         " is not described by \"dtype\", \"shape\" and \"data_offsets\", as the format requires");
  }
  auto type = value["dtype"].get<std::string>();
  auto known = std::find_if(kSafetensorsTypes.begin(), kSafetensorsTypes.end(),
                            [&](const auto& pair) { return pair.first == type; });
  if (known == kSafetensorsTypes.end()) {
    fail(ErrorKind::kCheckpoint, where, " has the type \"", type,
         "\", which is not supported (F32, F16, BF16, F64, I64, I32, I16, I8, U8, BOOL are)");
  }
  entry.dtype = known->second;
  auto itemsize_bytes = static_cast<int64_t>(c10::elementSize(entry.dtype));
  entry.numel = util::checked_numel(entry.shape, itemsize_bytes);
  extent.begin = offsets[0];
  extent.end = offsets[1];
  if (entry.numel < 0 || extent.end < extent.begin ||
      extent.end - extent.begin != entry.numel * itemsize_bytes) {
    fail(ErrorKind::kCheckpoint, where, " of type ", type, " and shape ", util::shape_text(entry.shape),
         " does not fit its data_offsets [", extent.begin, ", ", extent.end, "]");
  }
  return entry;
}

void check_name(const std::string& tensor, const std::string& path) {
  if (tensor.size() > kLongestTensorName) {
    fail(ErrorKind::kCheckpoint, path, " has a tensor whose name has ", tensor.size(),
         " bytes, more than the ", kLongestTensorName, " that a name may have");
  }
  if (!is_printable_name(tensor)) {
    fail(ErrorKind::kCheckpoint, path, " has a tensor with control characters in its name, ",
         util::printable(tensor));
  }
}

/// Checks that the tensors are adjacent and end with the file.
void check_extents(std::vector<Extent> extents, int64_t data_bytes, const std::string& path) {
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  int64_t at = 0;
  for (const Extent& extent : extents) {
    if (extent.begin != at) {
      fail(ErrorKind::kCheckpoint, path, ": tensor ", *extent.name, " starts at byte ", extent.begin,
           " of the data instead of byte ", at, ", so tensors ",
           extent.begin < at ? "overlap" : "leave a hole");
    }
    at = extent.end;
  }
  if (at != data_bytes) {
    fail(ErrorKind::kCheckpoint, path, " has ", data_bytes, " bytes of data, but its header describes ", at,
         "; it is ", at > data_bytes ? "cut off" : "followed by something else");
  }
}

}  // namespace

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path) : file_(util::RawFile::open(path)) {
  const std::string name = path.string();
  std::string text = read_header(file_);
  const int64_t data_begin = kLengthBytes + static_cast<int64_t>(text.size());
  std::vector<Extent> extents;
  read_json_members(
      text, kHeaderLimits, concat("the header of ", name), [&](std::string&& key, json&& value) {
        if (key == "__metadata__") {
          if (!value.is_object()) fail(ErrorKind::kCheckpoint, name, ": __metadata__ is not an object");
          for (const auto& [item, content] : value.items()) {
            if (!content.is_string()) {
              fail(ErrorKind::kCheckpoint, name, ": \"", item, "\" in __metadata__ is not a string");
            }
            metadata_[item] = content.get<std::string>();
          }
          return;
        }
        check_name(key, name);
        Extent extent;
        SafetensorsEntry entry = parse_entry(value, concat(name, ": tensor ", key), extent);
        entry.begin_bytes = data_begin + extent.begin;
        extent.name = &tensors_.emplace(std::move(key), std::move(entry)).first->first;
        extents.push_back(extent);
      });
  std::string().swap(text);
  check_extents(std::move(extents), file_.size_bytes() - data_begin, name);
}

std::vector<TensorInfo> SafetensorsReader::infos() const {
  std::vector<TensorInfo> infos;
  for (const auto& [name, entry] : tensors_) infos.push_back({name, entry.shape, entry.dtype});
  return infos;
}

const SafetensorsReader::SafetensorsEntry& SafetensorsReader::entry(const std::string& name) const {
  auto found = tensors_.find(name);
  if (found != tensors_.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, entry] : tensors_) names.push_back(known);
  std::string near = util::nearest(name, names);
  fail(ErrorKind::kCheckpoint, path().string(), " has no tensor ", name,
       near.empty() ? "" : concat("; the nearest name in it is ", near));
}

void SafetensorsReader::read(const std::string& name, int64_t begin, int64_t end, void* out) const {
  const SafetensorsEntry& found = entry(name);
  FSDP_CHECK(begin >= 0 && begin <= end && end <= found.numel, name);
  auto itemsize_bytes = static_cast<int64_t>(c10::elementSize(found.dtype));
  file_.read_at(found.begin_bytes + begin * itemsize_bytes, out, (end - begin) * itemsize_bytes);
}

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
      file_(util::RawFile::create_locked(temporary_)) {
  std::sort(infos_.begin(), infos_.end(), [](const TensorInfo& a, const TensorInfo& b) {
    auto key = [](const TensorInfo& t) { return -static_cast<int64_t>(c10::elementSize(t.dtype)); };
    return std::make_tuple(key(a), std::cref(a.name)) < std::make_tuple(key(b), std::cref(b.name));
  });
  try {
    // Entry by entry, because inserting into an ordered_json takes linear time.
    std::unordered_set<std::string_view> names;
    std::string text = R"({"__metadata__":{"format":"pt"})";
    for (const TensorInfo& info : infos_) {
      auto itemsize_bytes = static_cast<int64_t>(c10::elementSize(info.dtype));
      int64_t numel = util::checked_numel(info.shape, itemsize_bytes);
      FSDP_CHECK(numel >= 0 && info.name != "__metadata__" && names.insert(info.name).second, info.name);
      int64_t begin = missing_bytes_;
      missing_bytes_ += numel * itemsize_bytes;
      const nlohmann::ordered_json entry = {
          {"dtype", type_name(info.dtype)}, {"shape", info.shape}, {"data_offsets", {begin, missing_bytes_}}};
      text += concat(",", nlohmann::json(info.name).dump(), ":", entry.dump());
    }
    text += "}";
    while (text.size() % kHeaderAlignmentBytes != 0) text += ' ';
    uint64_t length = text.size();  // little-endian, like this machine
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

void SafetensorsWriter::append(const TensorInfo& info, const Weights& source, const std::string& stored_name,
                               util::ByteCounter& counter) {
  source.stream(stored_name, 0, source.numel(stored_name), info.dtype, [&](const at::Tensor& slice) {
    const auto bytes = static_cast<int64_t>(slice.nbytes());
    append(slice.const_data_ptr(), bytes);
    counter.add(bytes);
  });
}

void SafetensorsWriter::finish() {
  FSDP_CHECK(missing_bytes_ == 0 && !finished_);
  file_.sync();
  util::rename_and_sync(temporary_, path_);
  finished_ = true;
}

}  // namespace fsdp::checkpoint
