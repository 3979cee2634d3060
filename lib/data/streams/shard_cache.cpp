#include "data/streams/shard_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <vector>

#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/json.h"

namespace fsdp::data {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

constexpr const char* kIndexName = "index.jsonl";
constexpr const char* kLockName = "lock";
constexpr size_t kIndexReadBytes = 1 << 16;

json to_json(const BlockEntry& entry) {
  json line = {{"token", entry.token},
               {"tokens", entry.tokens},
               {"begin", data::to_json(entry.begin)},
               {"end", data::to_json(entry.end)}};
  if (entry.is_last) line["last"] = true;
  if (entry.bad_rows > 0) line["bad_rows"] = entry.bad_rows;
  return line;
}

/// Returns the entry of a line; nothing for a line that is none.
std::optional<BlockEntry> entry_of(std::string_view line) {
  try {
    const json object = util::parse_json(line, {.deepest_level = 4});
    BlockEntry entry{.token = object.at("token").get<int64_t>(),
                     .tokens = object.at("tokens").get<int64_t>(),
                     .begin = place_of(object.at("begin")),
                     .end = place_of(object.at("end")),
                     .is_last = object.value("last", false),
                     .bad_rows = object.value("bad_rows", int64_t{0})};
    if (entry.token < 0 || entry.tokens < 0) return std::nullopt;
    return entry;
  } catch (const util::JsonError&) {
  } catch (const json::exception&) {
  }
  return std::nullopt;
}

[[noreturn]] void refuse_folder(const fs::path& path, const std::string& reason) {
  fail(ErrorKind::kIo, "cannot use ", path.string(), ", where the tokens of texts are kept (", reason,
       "); set FSDP_CACHE_DIR to a folder with enough room that you may write to");
}

}  // namespace

json to_json(const TextPlace& place) { return {place.row, place.byte, place.in_document}; }

TextPlace place_of(const json& list) {
  return {.row = list.at(0).get<int64_t>(),
          .byte = list.at(1).get<int64_t>(),
          .in_document = list.at(2).get<bool>()};
}

bool ShardCache::refresh() {
  const fs::path path = folder_ / kIndexName;
  const util::Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file.is_open()) return false;
  struct stat status {};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_size == index_bytes_)
    return false;
  if (status.st_size < index_bytes_) index_bytes_ = 0;  // it has been written anew
  std::string text;
  bool has_new = false;
  for (int64_t at = index_bytes_;;) {
    const size_t before = text.size();
    text.resize(before + kIndexReadBytes);
    const ssize_t got = ::pread(file.get(), text.data() + before, kIndexReadBytes, at);
    text.resize(before + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got <= 0) break;
    at += got;
    // A line that another process is writing is read again later.
    size_t end = 0;
    for (size_t next; (next = text.find('\n', end)) != std::string::npos; end = next + 1) {
      if (const auto entry = entry_of(std::string_view(text).substr(end, next - end))) {
        take(*entry);
        has_new = true;
      }
    }
    index_bytes_ += static_cast<int64_t>(end);
    text.erase(0, end);
  }
  return has_new;
}

void ShardCache::take(const BlockEntry& entry) {
  entries_[entry.token] = entry;
  if (entry.is_last) tokens_ = entry.tokens_end();
}

const BlockEntry* ShardCache::last_before(int64_t token) const {
  auto after = entries_.upper_bound(token);
  return after == entries_.begin() ? nullptr : &std::prev(after)->second;
}

const BlockEntry* ShardCache::find(int64_t token) const {
  const BlockEntry* entry = last_before(token);
  return entry != nullptr && token < entry->tokens_end() ? entry : nullptr;
}

int64_t ShardCache::bad_rows() const {
  int64_t sum = 0;
  for (const auto& [token, entry] : entries_) sum += entry.bad_rows;
  return sum;
}

void ShardCache::add_place(int64_t token, const TextPlace& place) {
  entries_.try_emplace(token, BlockEntry{.token = token, .begin = place, .end = place});
}

fs::path ShardCache::block_path(const BlockEntry& entry) const {
  return folder_ / concat(entry.token, "-", entry.tokens, kBlockExtension);
}

std::shared_ptr<const TokenBlock> ShardCache::open(const BlockEntry& entry) const {
  const fs::path path = block_path(entry);
  auto block = TokenBlock::open(path, entry.tokens);
  // limit_blocks() removes blocks by the time that is set here.
  if (block) {
    ::utimensat(AT_FDCWD, path.c_str(), nullptr, 0);
  } else {
    std::error_code ignored;
    fs::remove(path, ignored);  // a damaged block is made again
  }
  return block;
}

bool ShardCache::has_file(const BlockEntry& entry) const {
  return entry.tokens == 0 || ::access(block_path(entry).c_str(), R_OK) == 0;
}

bool ShardCache::try_lock() {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) refuse_folder(folder_, error.message());
  const fs::path path = folder_ / kLockName;
  util::Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
  if (!file.is_open()) refuse_folder(path, util::errno_text(errno));
  while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return false;
    if (errno != EINTR) refuse_folder(path, concat("it cannot be locked: ", util::errno_text(errno)));
  }
  lock_ = std::move(file);
  repair_index();
  refresh();
  return true;
}

/// Removes what a killed process has left: the beginning of a line, and files without a name.
void ShardCache::repair_index() {
  std::error_code ignored;
  std::vector<fs::path> left;
  for (const auto& file : fs::directory_iterator(folder_, ignored)) {
    if (util::is_temporary_name(file.path().filename().string())) left.push_back(file.path());
  }
  for (const fs::path& file : left) fs::remove(file, ignored);
  refresh();
  const fs::path path = folder_ / kIndexName;
  if (fs::exists(path, ignored) && static_cast<int64_t>(fs::file_size(path, ignored)) > index_bytes_) {
    fs::resize_file(path, static_cast<uintmax_t>(index_bytes_), ignored);
  }
}

int64_t ShardCache::write(const BlockEntry& entry, const BlockContent& content) const {
  const int64_t bytes = entry.tokens > 0 ? write_block(block_path(entry), content) : 0;
  const fs::path path = folder_ / kIndexName;
  const util::Descriptor file(
      ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
  if (!file.is_open()) refuse_folder(path, util::errno_text(errno));
  util::write_all(file.get(), to_json(entry).dump() + "\n", path);
  return bytes;
}

void limit_blocks(const fs::path& folder, int64_t most_bytes) {
  struct File {
    fs::file_time_type used;
    int64_t bytes;
    fs::path path;
  };
  std::vector<File> files;
  int64_t sum = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, fs::directory_options::skip_permission_denied, error), end;
       !error && at != end; at.increment(error)) {
    if (at->path().extension() != kBlockExtension) continue;
    std::error_code gone;
    const auto bytes = static_cast<int64_t>(at->file_size(gone));
    const auto used = at->last_write_time(gone);
    if (gone) continue;
    files.push_back({used, bytes, at->path()});
    sum += bytes;
  }
  std::ranges::sort(files, {}, &File::used);
  for (const File& file : files) {
    if (sum <= most_bytes) return;
    fs::remove(file.path, error);
    sum -= file.bytes;
  }
}

}  // namespace fsdp::data
