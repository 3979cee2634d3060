#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "checkpoint/json.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_types.h"
#include "util/error.h"
#include "util/text.h"

namespace fsdp::checkpoint {
using nlohmann::json;
using util::concat;
using util::ErrorKind;
using util::fail;

namespace {

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kLargestHeaderBytes = 100'000'000;  // the limit of the reference implementation
// {tensor: {shape: [...]}}, and the values of one entry as a bound of the memory that reading it takes.
constexpr util::JsonLimits kHeaderLimits{.deepest_level = 3, .most_values = 1'000'000};

std::string read_header(const RawFile& file) {
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
         "; it is no safetensors file or is cut off");
  }
  std::string header(length, '\0');
  file.read_at(kLengthBytes, header.data(), static_cast<int64_t>(length));
  return header;
}

/// A list of whole numbers that are not negative, or false.
bool read_sizes(const json& value, std::vector<int64_t>& sizes) {
  if (!value.is_array()) return false;
  for (const json& size : value) {
    // nlohmann holds every whole number without a sign as unsigned.
    if (!size.is_number_unsigned() ||
        size.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return false;
    }
    sizes.push_back(size.get<int64_t>());
  }
  return true;
}

struct Extent {
  int64_t begin = 0, end = 0;         ///< bytes, from the start of the data
  const std::string* name = nullptr;  ///< lives in the reader's table
};

SafetensorsReader::Entry parse_entry(const json& value, const std::string& where, Extent& extent) {
  SafetensorsReader::Entry entry;
  std::vector<int64_t> offsets;
  if (!value.is_object() || !value.contains("dtype") || !value["dtype"].is_string() ||
      !value.contains("shape") || !read_sizes(value["shape"], entry.shape) ||
      !value.contains("data_offsets") || !read_sizes(value["data_offsets"], offsets) || offsets.size() != 2) {
    fail(ErrorKind::kCheckpoint, where,
         " is not described by \"dtype\", \"shape\" and \"data_offsets\" as the format demands");
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
  entry.numel = checked_numel(entry.shape, itemsize_bytes);
  extent.begin = offsets[0];
  extent.end = offsets[1];
  if (entry.numel < 0 || extent.end < extent.begin ||
      extent.end - extent.begin != entry.numel * itemsize_bytes) {
    fail(ErrorKind::kCheckpoint, where, " of type ", type, " and shape ", shape_text(entry.shape),
         " does not fit its data_offsets [", extent.begin, ", ", extent.end, "]");
  }
  return entry;
}

void check_name(const std::string& tensor, const std::string& path) {
  if (tensor.size() > kLongestTensorName) {
    fail(ErrorKind::kCheckpoint, path, " has a tensor whose name has ", tensor.size(),
         " bytes, more than the ", kLongestTensorName, " that a name may have");
  }
  if (std::any_of(tensor.begin(), tensor.end(), [](unsigned char c) { return c < 0x20; })) {
    fail(ErrorKind::kCheckpoint, path, " has a tensor with control characters in its name");
  }
}

/// The tensors must lie one behind the other and end with the file.
void check_extents(std::vector<Extent> extents, int64_t data_bytes, const std::string& path) {
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  int64_t at = 0;
  for (const Extent& extent : extents) {
    if (extent.begin != at) {
      fail(ErrorKind::kCheckpoint, path, ": tensor ", *extent.name, " starts at byte ", extent.begin,
           " of the data where byte ", at, " was expected, so tensors ",
           extent.begin < at ? "overlap" : "leave a hole");
    }
    at = extent.end;
  }
  if (at != data_bytes) {
    fail(ErrorKind::kCheckpoint, path, " has ", data_bytes, " bytes of data where its header describes ", at,
         "; it is ", at > data_bytes ? "cut off" : "followed by something else");
  }
}

}  // namespace

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path) : file_(RawFile::open(path)) {
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
              fail(ErrorKind::kCheckpoint, name, ": \"", item, "\" in __metadata__ is not a text");
            }
            metadata_[item] = content.get<std::string>();
          }
          return;
        }
        check_name(key, name);
        Extent extent;
        Entry entry = parse_entry(value, concat(name, ": tensor ", key), extent);
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

const SafetensorsReader::Entry& SafetensorsReader::entry(const std::string& name) const {
  auto found = tensors_.find(name);
  if (found != tensors_.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, entry] : tensors_) names.push_back(known);
  std::string near = util::nearest(name, names);
  fail(ErrorKind::kCheckpoint, path().string(), " has no tensor ", name,
       near.empty() ? "" : concat("; the nearest name in it is ", near));
}

void SafetensorsReader::read(const std::string& name, int64_t begin, int64_t end, void* out) const {
  const Entry& found = entry(name);
  FSDP_CHECK(begin >= 0 && begin <= end && end <= found.numel, name);
  auto itemsize_bytes = static_cast<int64_t>(c10::elementSize(found.dtype));
  file_.read_at(found.begin_bytes + begin * itemsize_bytes, out, (end - begin) * itemsize_bytes);
}

}  // namespace fsdp::checkpoint
