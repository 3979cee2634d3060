#include "state/dcp/dcp_folder.h"

#include <array>
#include <cstring>
#include <utility>

#include "base/dtype/dtype.h"
#include "base/util/error.h"
#include "base/util/shape.h"
#include "state/manifest/digest.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr int64_t kLargestMetadataBytes = int64_t{1} << 29;
constexpr size_t kMostOpenFiles = 64;

/// Reads a number from the bytes of one element.
json number_in(const char* bytes, c10::ScalarType dtype) {
  const auto as = [bytes]<typename Number>(Number number) {
    std::memcpy(&number, bytes, sizeof(number));
    return json(number);
  };
  switch (dtype) {
    case c10::ScalarType::Float:
      return as(float{});
    case c10::ScalarType::Double:
      return as(double{});
    case c10::ScalarType::Long:
      return as(int64_t{});
    case c10::ScalarType::Int:
      return as(int32_t{});
    default:
      return nullptr;
  }
}

}  // namespace

DcpFolder::DcpFolder(fs::path folder) : folder_(std::move(folder)) {
  const fs::path path = folder_ / kDcpMetadataName;
  metadata_ =
      parse_dcp_metadata(read_text(path, kLargestMetadataBytes, "metadata of a checkpoint"), path.string());
  begins_.assign(metadata_.items.size(), -1);
}

std::vector<TensorInfo> DcpFolder::infos() const {
  std::vector<TensorInfo> infos;
  for (const auto& [key, entry] : metadata_.manifest.tensors)
    infos.push_back({key, entry.shape, entry.dtype});
  return infos;
}

const util::RawFile& DcpFolder::open(const std::string& file) const {
  auto found = open_.find(file);
  if (found == open_.end()) {
    if (open_.size() == kMostOpenFiles) open_.clear();
    found = open_.emplace(file, util::RawFile::open(folder_ / file)).first;
  }
  return found->second;
}

int64_t DcpFolder::begin_of(size_t item, const std::string& key, const TensorEntry& entry,
                            int64_t numel) const {
  if (begins_[item] >= 0) return begins_[item];
  const DcpItem& place = metadata_.items[item];
  const std::string where = concat((folder_ / place.file).string(), ": ", key);
  const TorchTensor stored = read_torch_tensor(open(place.file), place.place, where);
  if (stored.dtype != entry.dtype || stored.data.bytes != numel * util::element_size(entry.dtype)) {
    fail(ErrorKind::kCheckpoint, where, " must have ", numel, " elements of type ",
         util::dtype_name(entry.dtype), ", as in ", kDcpMetadataName, ", but has the shape ",
         util::shape_text(stored.shape), " and the type ", util::dtype_name(stored.dtype),
         "; the files belong to different checkpoints");
  }
  return begins_[item] = stored.data.begin;
}

void DcpFolder::read(const std::string& key, int64_t begin, int64_t end, void* out) const {
  const auto found = metadata_.manifest.tensors.find(key);
  FSDP_CHECK(found != metadata_.manifest.tensors.end(), key);
  const TensorEntry& entry = found->second;
  FSDP_CHECK(begin >= 0 && begin <= end && end <= entry.numel, key);
  const int64_t itemsize_bytes = util::element_size(entry.dtype);
  for_each_range(entry.ranges, {}, [&](const util::Rectangle& part, size_t item, const RangeEntry&) {
    util::for_each_overlap(entry.numel, {begin, end}, part, [&](const util::Overlap& overlap) {
      const int64_t at = begin_of(item, key, entry, part.numel()) + overlap.in_b * itemsize_bytes;
      open(metadata_.items[item].file)
          .read_at(at, static_cast<char*>(out) + overlap.in_a * itemsize_bytes,
                   overlap.count * itemsize_bytes);
    });
  });
}

std::vector<std::string> DcpFolder::value_keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, item] : metadata_.values) keys.push_back(key);
  return keys;
}

json DcpFolder::value(const std::string& key) const {
  if (const auto found = metadata_.values.find(key); found != metadata_.values.end()) {
    const DcpItem& item = found->second;
    return read_torch_value(open(item.file), item.place, concat((folder_ / item.file).string(), ": ", key));
  }
  const auto tensor = metadata_.manifest.tensors.find(key);
  if (tensor == metadata_.manifest.tensors.end() || tensor->second.numel != 1) return nullptr;
  std::array<char, sizeof(double)> bytes{};
  read(key, 0, 1, bytes.data());
  return number_in(bytes.data(), tensor->second.dtype);
}

void DcpFolder::verify_all(const util::ByteProgress& progress) const {
  int64_t total_bytes = 0;
  for (const FileEntry& item : metadata_.manifest.files) total_bytes += item.bytes;
  util::ByteCounter counter(progress, "verifying", total_bytes);
  for (const auto& [key, entry] : metadata_.manifest.tensors) {
    for_each_range(entry.ranges, {}, [&](const util::Rectangle& part, size_t item, const RangeEntry&) {
      begin_of(item, key, entry, part.numel());
      counter.add(metadata_.items[item].place.bytes);
    });
  }
}

}  // namespace fsdp::checkpoint
