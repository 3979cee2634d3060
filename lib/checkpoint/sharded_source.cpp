#include "checkpoint/sharded_source.h"

#include <utility>

namespace fsdp::checkpoint {

ShardedSource::ShardedSource(std::filesystem::path folder)
    : folder_(std::move(folder)), manifest_(read_manifest(folder_)), shards_(folder_, manifest_) {}

void ShardedSource::verify_all(const util::ByteProgress& progress) const {
  int64_t total_bytes = 0, done_bytes = 0;
  for (const FileEntry& file : manifest_.files) total_bytes += file.bytes;
  for (size_t file = 0; file < manifest_.files.size(); ++file) {
    shards_.verify(file, [&](int64_t bytes) {
      done_bytes += bytes;
      if (progress) progress("verifying", done_bytes, total_bytes);
    });
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
