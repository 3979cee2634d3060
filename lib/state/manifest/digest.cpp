#include "state/manifest/digest.h"

#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "base/objects/local_copy.h"
#include "base/objects/object_name.h"
#include "base/objects/object_store.h"
#include "base/util/error.h"
#include "base/util/raw_file.h"
#include "base/util/text.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr int64_t kHashBlock = int64_t{1} << 20;

/// Calls `body` and prefixes errors of base/util/json.h with the name of the text.
template <typename Body>
auto naming(const std::string& where, const Body& body) {
  try {
    return body();
  } catch (const util::JsonError& error) {
    fail(ErrorKind::kCheckpoint, where, " ", error.what());
  }
}

/// A file, or an object of a store, of which parts are read one after another.
class HashedBytes {
 public:
  explicit HashedBytes(const fs::path& path) : name_(path.string()) {
    if (!objects::is_remote(name_)) {
      file_ = util::RawFile::open(path);
      return;
    }
    object_ = objects::object_store(name_).find(name_);
    if (!object_) fail(ErrorKind::kCheckpoint, "the object ", name_, " does not exist");
  }

  int64_t size_bytes() const { return file_ ? file_->size_bytes() : object_->size_bytes; }
  void read_at(int64_t offset, char* out, int64_t bytes) const {
    file_ ? file_->read_at(offset, out, bytes)
          : objects::object_store(name_).read(name_, *object_, offset, bytes, out);
  }

 private:
  std::string name_;
  std::optional<util::RawFile> file_;
  std::optional<objects::ObjectInfo> object_;
};

}  // namespace

fs::path temporary_name(const fs::path& path) {
  return path.parent_path() / concat(".", path.filename().string(), ".tmp");
}

FileDigest digest_file(const fs::path& path, const std::function<void(int64_t)>& on_bytes) {
  const HashedBytes file(path);
  FileDigest digest;
  digest.bytes = file.size_bytes();
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), &XXH3_freeState);
  FSDP_CHECK(state && XXH3_64bits_reset(state.get()) == XXH_OK);
  std::vector<char> block(static_cast<size_t>(kHashBlock));
  for (int64_t at = 0; at < digest.bytes; at += kHashBlock) {
    int64_t count = std::min(kHashBlock, digest.bytes - at);
    file.read_at(at, block.data(), count);
    FSDP_CHECK(XXH3_64bits_update(state.get(), block.data(), static_cast<size_t>(count)) == XXH_OK);
    if (on_bytes) on_bytes(count);
  }
  digest.xxh3_64 = util::hex_digits(XXH3_64bits_digest(state.get()));
  return digest;
}

std::string xxh3_64_of(std::string_view text) {
  return util::hex_digits(XXH3_64bits(text.data(), text.size()));
}

std::string read_text(const fs::path& path, int64_t largest_bytes, const std::string& what) {
  const util::RawFile file = util::RawFile::open(objects::file_copy(path));
  const int64_t bytes = file.size_bytes();
  if (bytes > largest_bytes) {
    fail(ErrorKind::kCheckpoint, path.string(), " has ", bytes, " bytes, more than any ", what);
  }
  std::string text(static_cast<size_t>(bytes), '\0');
  file.read_at(0, text.data(), bytes);
  return text;
}

json read_json(const fs::path& path, int64_t largest_bytes, const std::string& what) {
  const std::string text = read_text(path, largest_bytes, what);
  return naming(path.string(), [&] { return util::parse_json(text, {.deepest_level = 16}); });
}

void read_json_members(std::string_view text, const util::JsonLimits& limits, const std::string& where,
                       const std::function<void(std::string&& key, json&& value)>& on_member) {
  naming(where, [&] { util::read_json_members(text, limits, on_member); });
}

util::CanonicalJson canonical_json(std::string_view text, int deepest_level, const std::string& where) {
  return naming(where, [&] { return util::CanonicalJson(text, {.deepest_level = deepest_level}); });
}

}  // namespace fsdp::checkpoint
