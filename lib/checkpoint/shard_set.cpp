#include "checkpoint/shard_set.h"

#include <algorithm>
#include <utility>

#include "checkpoint/raw_file.h"
#include "util/error.h"

namespace fsdp::checkpoint {
using util::ErrorKind;
using util::fail;

namespace {
/// Far from the usual limit of 1024 open files, and each open file of HDF5 holds a few MiB of caches.
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
    fail(ErrorKind::kCheckpoint, path.string(), " has ", found.bytes, " bytes where the manifest gives ",
         entry.bytes, "; the file is cut off or altered, so use another checkpoint");
  }
  if (found.xxh3_64 != entry.xxh3_64) {
    fail(ErrorKind::kCheckpoint, path.string(), " is damaged: its hash is ", found.xxh3_64,
         " where the manifest gives ", entry.xxh3_64, "; restore it from a copy or use another checkpoint");
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

std::vector<ShardRead> ShardSet::plan(const std::string& name, int64_t begin, int64_t end, void* out) const {
  auto tensor = manifest_.tensors.find(name);
  FSDP_CHECK(tensor != manifest_.tensors.end(), name);
  const TensorEntry& entry = tensor->second;
  FSDP_CHECK(begin >= 0 && begin <= end && end <= entry.numel, name);
  const auto itemsize_bytes = static_cast<int64_t>(c10::elementSize(entry.dtype));
  std::vector<ShardRead> reads;
  // The ranges cover the tensor without gap or overlap, so the first one that ends after `begin` holds it.
  auto range = std::upper_bound(entry.ranges.begin(), entry.ranges.end(), begin,
                                [](int64_t value, const RangeEntry& r) { return value < r.end; });
  for (; range != entry.ranges.end() && range->begin < end; ++range) {
    int64_t from = std::max(begin, range->begin), to = std::min(end, range->end);
    reads.push_back({.file = range->file,
                     .name = &tensor->first,
                     .entry = &entry,
                     .offset = range->offset + (from - range->begin),
                     .count = to - from,
                     .out = static_cast<char*>(out) + (from - begin) * itemsize_bytes});
  }
  return reads;
}

void ShardSet::read(const ShardRead& read) {
  DatasetSpec spec{*read.name, read.entry->dtype, read.entry->numel_in_file.at(read.file)};
  open(read.file).read(spec, read.offset, read.count, read.out);
}

}  // namespace fsdp::checkpoint
