#include "state/weights/shard_set.h"

#include <algorithm>
#include <utility>

#include "base/objects/local_copy.h"
#include "base/util/error.h"
#include "state/manifest/digest.h"

namespace fsdp::checkpoint {

namespace {
/// Most files open at a time. Far below the usual limit of 1024, because each open HDF5 file holds a few MiB
/// of caches.
constexpr size_t kMostOpenFiles = 16;
}  // namespace

ShardSet::ShardSet(std::filesystem::path folder, const Manifest& manifest)
    : folder_(std::move(folder)), manifest_(manifest), verified_(manifest.files.size(), false) {}

void ShardSet::verify(size_t file, const std::function<void(int64_t)>& on_bytes) {
  verify_at(folder_ / manifest_.files[file].name, file, on_bytes);
}

void ShardSet::verify_at(const std::filesystem::path& path, size_t file,
                         const std::function<void(int64_t)>& on_bytes) {
  if (verified_[file]) return;
  const FileEntry& entry = manifest_.files[file];
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
    const std::filesystem::path path = objects::file_copy(folder_ / manifest_.files[file].name);
    verify_at(path, file);
    if (open_.size() == kMostOpenFiles) open_.pop_back();
    open_.push_front({file, ShardFile(path)});
  }
  return open_.front().shard;
}

void ShardSet::check(size_t file, const std::function<void(const std::function<void()>& check)>& note) {
  for (const auto& [name, entry] : manifest_.tensors) {
    const int64_t held = entry.numel_in(file);
    if (held > 0) note([&] { open(file).check({name, entry.dtype, held}); });
  }
  note([&] { open(file).check_description(describe_file(manifest_, file)); });
}

namespace {

/// Adds overlaps to the reads of one range: as part of the last block, as another block, or as a new read.
class ReadJoiner {
 public:
  ReadJoiner(const ShardRead& pattern, int64_t itemsize_bytes, std::vector<ShardRead>& reads)
      : pattern_(pattern), itemsize_bytes_(itemsize_bytes), reads_(reads) {}

  /// Adds `count` elements that begin at element `in_file` of the data set and `in_out` of the destination.
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
  int64_t first_out_ = 0;  ///< element of the destination at which the last read begins
  bool open_ = false;
};

}  // namespace

std::vector<ShardRead> ShardSet::plan(const std::string& name, const util::Rectangle& part, void* out) const {
  auto tensor = manifest_.tensors.find(name);
  FSDP_CHECK(tensor != manifest_.tensors.end(), name);
  const TensorEntry& entry = tensor->second;
  FSDP_CHECK(part.fits(entry.numel), name);
  std::vector<ShardRead> reads;
  if (part.numel() == 0) return reads;
  // Rows and columns of the entry's view between the first and the last element of the part.
  RangeQuery query{
      .row_begin = part.row_begin, .row_end = part.row_end, .begin = part.begin, .end = part.end};
  if (part.rows != entry.rows) {
    const int64_t of_part = entry.numel / part.rows, columns = entry.numel / entry.rows;
    const int64_t first = part.row_begin * of_part + part.begin,
                  last = (part.row_end - 1) * of_part + part.end - 1;
    query = {.row_begin = first / columns, .row_end = last / columns + 1};
    if (query.row_end - query.row_begin == 1) {
      query.begin = first % columns;
      query.end = last % columns + 1;
    }
  }
  for_each_range(
      entry.ranges, query, [&](const util::Rectangle& range, size_t file, const RangeEntry& stored) {
        ReadJoiner joiner(
            {.file = file, .name = &tensor->first, .entry = &entry, .held = stored.held, .out = out},
            static_cast<int64_t>(c10::elementSize(entry.dtype)), reads);
        util::for_each_overlap(entry.numel, part, range, [&](const util::Overlap& overlap) {
          joiner.add(overlap.in_a, stored.offset + overlap.in_b, overlap.count);
        });
      });
  return reads;
}

void ShardSet::read(const ShardRead& read) {
  DatasetSpec spec{*read.name, read.entry->dtype, read.held};
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
