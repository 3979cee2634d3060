#include "checkpoint/shard_set.h"

#include <algorithm>
#include <utility>

#include "checkpoint/raw_file.h"
#include "util/error.h"

namespace fsdp::checkpoint {
using util::concat;

namespace {
/// Far below the usual limit of 1024 open files; each open HDF5 file holds a few MiB of caches.
constexpr size_t kMostOpenFiles = 16;
}  // namespace

ShardSet::ShardSet(std::filesystem::path folder, const Manifest& manifest)
    : folder_(std::move(folder)), manifest_(manifest), verified_(manifest.files.size(), false) {}

void ShardSet::verify(size_t file, const std::function<void(int64_t)>& on_bytes) {
  if (verified_[file]) return;
  const FileEntry& entry = manifest_.files[file];
  const auto path = folder_ / entry.name;
  FileDigest found = digest_file(path, on_bytes);
  if (found.bytes != entry.bytes) {
    throw DamageError(
        path, concat(path.string(), " has ", found.bytes, " bytes, but the manifest gives ", entry.bytes,
                     "; the file is cut off or altered, so use another checkpoint"));
  }
  if (found.xxh3_64 != entry.xxh3_64) {
    throw DamageError(
        path, concat(path.string(), " is damaged: its hash is ", found.xxh3_64, ", but the manifest gives ",
                     entry.xxh3_64, "; restore it from a copy or use another checkpoint"));
  }
  verified_[file] = true;
}

const ShardFile& ShardSet::open(size_t file) {
  auto found = std::find_if(open_.begin(), open_.end(), [&](const OpenFile& o) { return o.file == file; });
  if (found != open_.end()) {
    open_.splice(open_.begin(), open_, found);
  } else {
    verify(file);
    if (open_.size() == kMostOpenFiles) open_.pop_back();
    open_.push_front({file, ShardFile(folder_ / manifest_.files[file].name)});
  }
  return open_.front().shard;
}

void ShardSet::check(size_t file, const std::string& name, const TensorEntry& entry) {
  open(file).check({name, entry.dtype, entry.numel_in_file.at(file)});
}

namespace {

/// Adds overlaps to the reads of one range: as part of the last block, as another block, or as a new read.
class ReadJoiner {
 public:
  ReadJoiner(const ShardRead& pattern, int64_t itemsize_bytes, std::vector<ShardRead>& reads)
      : pattern_(pattern), itemsize_bytes_(itemsize_bytes), reads_(reads) {}

  /// `in_out`, `in_file`: first element in the destination and in the data set.
  void add(int64_t in_out, int64_t in_file, int64_t count) {
    if (open_ && extends(in_out, in_file, count)) return;
    ShardRead read = pattern_;
    read.blocks = {.offset = in_file, .count = count};
    read.out = static_cast<char*>(pattern_.out) + in_out * itemsize_bytes_;
    reads_.push_back(read);
    first_out_ = in_out;
    open_ = true;
  }

 private:
  bool extends(int64_t in_out, int64_t in_file, int64_t count) {
    DatasetBlocks& last = reads_.back().blocks;
    if (last.blocks == 1 && in_file == last.offset + last.count && in_out == first_out_ + last.count) {
      last.count += count;
      return true;
    }
    if (count != last.count) return false;
    if (last.blocks == 1) {
      last.stride = in_file - last.offset;
      last.out_stride = in_out - first_out_;
      last.blocks = 2;
      return true;
    }
    if (in_file != last.offset + last.blocks * last.stride ||
        in_out != first_out_ + last.blocks * last.out_stride) {
      return false;
    }
    ++last.blocks;
    return true;
  }

  ShardRead pattern_;
  int64_t itemsize_bytes_;
  std::vector<ShardRead>& reads_;
  int64_t first_out_ = 0;  ///< element of the destination of the last read
  bool open_ = false;
};

}  // namespace

std::vector<ShardRead> ShardSet::plan(const std::string& name, const util::Rectangle& part, void* out) const {
  auto tensor = manifest_.tensors.find(name);
  FSDP_CHECK(tensor != manifest_.tensors.end(), name);
  const TensorEntry& entry = tensor->second;
  FSDP_CHECK(part.fits(entry.numel), name);
  std::vector<ShardRead> reads;
  const bool alike = part.rows == entry.rows, in_columns = alike && entry.is_cut_in_columns();
  auto range = entry.ranges.begin();
  if (in_columns) {
    // The ranges have no gaps or overlaps, so the first one that ends after `begin` holds it.
    range = std::upper_bound(entry.ranges.begin(), entry.ranges.end(), part.begin,
                             [](int64_t value, const RangeEntry& r) { return value < r.part.end; });
  }
  for (; range != entry.ranges.end(); ++range) {
    if (in_columns && range->part.begin >= part.end) break;
    if (alike && range->part.row_begin >= part.row_end) break;
    ReadJoiner joiner({.file = range->file, .name = &tensor->first, .entry = &entry, .out = out},
                      static_cast<int64_t>(c10::elementSize(entry.dtype)), reads);
    util::for_each_overlap(entry.numel, part, range->part, [&](const util::Overlap& overlap) {
      joiner.add(overlap.in_a, range->offset + overlap.in_b, overlap.count);
    });
  }
  return reads;
}

void ShardSet::read(const ShardRead& read) {
  DatasetSpec spec{*read.name, read.entry->dtype, read.entry->numel_in_file.at(read.file)};
  open(read.file).read(spec, read.blocks, read.out);
}

ShardedSource::ShardedSource(std::filesystem::path folder)
    : folder_(std::move(folder)), manifest_(read_manifest(folder_)), shards_(folder_, manifest_) {}

void ShardedSource::verify_all(const util::ByteProgress& progress) const {
  int64_t total_bytes = 0;
  for (const FileEntry& file : manifest_.files) total_bytes += file.bytes;
  util::ByteCounter counter(progress, "verifying", total_bytes);
  for (size_t file = 0; file < manifest_.files.size(); ++file) {
    shards_.verify(file, [&](int64_t bytes) { counter.add(bytes); });
  }
}

std::vector<TensorInfo> ShardedSource::infos() const {
  std::vector<TensorInfo> infos;
  for (const auto& [name, entry] : manifest_.tensors) infos.push_back({name, entry.shape, entry.dtype});
  return infos;
}

void ShardedSource::read(const std::string& name, int64_t begin, int64_t end, void* out) const {
  for (const ShardRead& read : shards_.plan(name, {begin, end}, out)) shards_.read(read);
}

}  // namespace fsdp::checkpoint
