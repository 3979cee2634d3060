#include "base/objects/local_copy.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <future>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/objects/object_cache.h"
#include "base/objects/object_name.h"
#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/log.h"
#include "base/util/regular_file.h"
#include "base/util/text.h"
#include "base/util/work_queue.h"

namespace fsdp::objects {
namespace {

namespace fs = std::filesystem;

constexpr int kThreads = 4;
/// Files beside an object are copied up to this size.
constexpr int64_t kMostCompanionBytes = int64_t{64} << 20;
/// File in the folder of copies with the size and version of each.
constexpr const char* kRecord = ".objects.json";

/// Files that describe a model or a tokenizer, which their readers look for beside it.
constexpr std::array<std::string_view, 13> kCompanions{"config.json",        "generation_config.json",
                                                       "tokenizer.json",     "tokenizer_config.json",
                                                       "tokenizer.model",    "special_tokens_map.json",
                                                       "added_tokens.json",  "chat_template.jinja",
                                                       "chat_template.json", "vocab.json",
                                                       "merges.txt",         "tekken.json",
                                                       "adapter_config.json"};

bool has_ending(std::string_view name, std::initializer_list<std::string_view> endings) {
  return std::ranges::any_of(endings, [&](std::string_view ending) { return name.ends_with(ending); });
}

bool is_in_subfolder(const ListedObject& object) { return object.name.find('/') != std::string::npos; }

/// Copies of the objects of one folder, in a folder of the cache.
class FolderCopy {
 public:
  FolderCopy(const std::string& folder, util::ByteProgress progress)
      : name_(folder),
        store_(object_store(folder)),
        cache_(ObjectCache::of_user()),
        path_(cache_.copies() / cache_key(folder)),
        progress_(std::move(progress)) {
    std::error_code error;
    fs::create_directories(path_, error);
    if (error) fail(ErrorKind::kIo, "cannot create ", path_.string(), ": ", error.message());
  }

  const fs::path& path() const { return path_; }

  /// Copies the objects, relative to the folder, that are missing or have changed. Returns whether all exist.
  /// `required`: throws if one does not.
  bool take(const std::vector<std::string>& objects, bool required) {
    for (const std::string& object : objects) require_inside(object);
    const CacheLock lock(path_ / ".lock");
    read_record();
    std::vector<std::pair<std::string, ObjectInfo>> missing;
    int64_t total = 0;
    bool all_exist = true;
    util::WorkQueue<void> threads(objects.size() > 1 ? kThreads : 0);
    std::vector<std::future<void>> found;
    for (const std::string& object : objects) {
      found.push_back(threads.add([&, object] {
        const std::optional<ObjectInfo> info = store_.find(joined(name_, object));
        if (!info && required) {
          fail(ErrorKind::kData, "the object ", joined(name_, object), " does not exist; correct the name");
        }
        const std::lock_guard guard(mutex_);
        all_exist = all_exist && info;
        if (!info || is_copied(object, *info)) return;
        missing.emplace_back(object, *info);
        total += std::max<int64_t>(info->size_bytes, 0);
      }));
    }
    for (std::future<void>& one : found) one.get();
    if (missing.empty()) return all_exist;
    util::log_info(concat("copying ",
                          missing.size() == 1 ? joined(name_, missing.front().first)
                                              : concat(missing.size(), " files of ", name_),
                          " (", util::human_bytes(total), ")"));
    util::ByteCounter counter(progress_, concat("copying ", last_part(name_)), total);
    std::vector<std::future<void>> copied;
    for (const auto& [object, info] : missing) {
      copied.push_back(threads.add([&, &object = object, &info = info] {
        copy(object, info);
        const std::lock_guard guard(mutex_);
        record_[object] = {{"bytes", info.size_bytes}, {"version", info.version}};
        counter.add(info.size_bytes);
      }));
    }
    for (std::future<void>& one : copied) one.wait();
    util::write_file_atomically(path_ / kRecord, record_.dump());
    for (std::future<void>& one : copied) one.get();
    cache_.added(total);
    return all_exist;
  }

 private:
  /// Throws if the name of an object, which a stranger may have chosen, leads out of the folder of the
  /// copies.
  void require_inside(const std::string& object) const {
    const fs::path path = fs::path(object).lexically_normal();
    if (!path.empty() && path.is_relative() && path.begin()->string() != "..") return;
    fail(ErrorKind::kData, "the object \"", util::printable(object), "\" of ", name_,
         " must have a name within its folder; rename it");
  }

  void read_record() {
    const std::string text = util::read_beginning(path_ / kRecord, size_t{1} << 26);
    record_ = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!record_.is_object()) record_ = nlohmann::json::object();
  }

  bool is_copied(const std::string& object, const ObjectInfo& info) const {
    const auto entry = record_.find(object);
    if (entry == record_.end() || !entry->is_object() || info.version.empty()) return false;
    std::error_code error;
    const bool is_same = entry->value("version", "") == info.version &&
                         entry->value("bytes", int64_t{-1}) == info.size_bytes &&
                         static_cast<int64_t>(fs::file_size(path_ / object, error)) == info.size_bytes &&
                         !error;
    if (is_same) ObjectCache::touch(path_ / object);
    return is_same;
  }

  void copy(const std::string& object, const ObjectInfo& info) const {
    const fs::path to = path_ / object, temporary = util::temporary_name(to);
    std::error_code error;
    fs::create_directories(to.parent_path(), error);
    try {
      store_.download(joined(name_, object), info, temporary);
      util::sync_path(temporary);
      util::rename_and_sync(temporary, to);
    } catch (...) {
      ::unlink(temporary.c_str());
      throw;
    }
  }

  std::string name_;
  ObjectStore& store_;
  ObjectCache& cache_;
  fs::path path_;
  util::ByteProgress progress_;
  std::mutex mutex_;
  nlohmann::json record_;
};

std::vector<std::string> names_of(const std::vector<ListedObject>& objects) {
  std::vector<std::string> names;
  for (const ListedObject& object : objects) names.push_back(object.name);
  return names;
}

fs::path copy_folder(const std::string& folder, const std::vector<ListedObject>& listed,
                     const util::ByteProgress& progress) {
  FolderCopy copy(folder, progress);
  copy.take(names_of(needed_objects(listed)), /*required=*/true);
  return copy.path();
}

fs::path copy_object(const std::string& name, const util::ByteProgress& progress) {
  const std::string object = last_part(name);
  FolderCopy copy(folder_of(name), progress);
  copy.take({object}, /*required=*/true);
  std::vector<std::string> beside;
  for (const std::string_view companion : kCompanions) {
    if (companion != object) beside.emplace_back(companion);
  }
  copy.take(beside, /*required=*/false);
  return copy.path() / object;
}

}  // namespace

std::vector<ListedObject> needed_objects(const std::vector<ListedObject>& listed) {
  const auto any = [&](const auto& is) { return std::ranges::any_of(listed, is); };
  if (any([](const ListedObject& o) { return o.name == "manifest.json" || o.name == ".metadata"; }))
    return listed;
  const bool has_safetensors =
      any([](const ListedObject& o) { return !is_in_subfolder(o) && o.name.ends_with(".safetensors"); });
  std::vector<ListedObject> needed;
  for (const ListedObject& object : listed) {
    if (is_in_subfolder(object) || object.name.starts_with('.')) continue;
    const bool is_weights = has_ending(object.name, {".safetensors", ".gguf"});
    const bool is_text = has_ending(object.name, {".json", ".jinja", ".model", ".txt", ".tiktoken", ".toml"});
    if (is_weights ? !has_safetensors || object.name.ends_with(".safetensors")
                   : is_text && object.size_bytes <= kMostCompanionBytes) {
      needed.push_back(object);
    }
  }
  return needed;
}

std::optional<fs::path> copy_if_there(const std::string& name) {
  const std::string object = last_part(name);
  FolderCopy copy(folder_of(name), {});
  return copy.take({object}, /*required=*/false) ? std::optional(copy.path() / object) : std::nullopt;
}

fs::path file_copy(const fs::path& path_or_name) {
  const std::string name = path_or_name.string();
  if (!is_remote(name)) return path_or_name;
  if (std::optional<fs::path> copy = copy_if_there(name)) return *copy;
  fail(ErrorKind::kData, "the object ", name, " does not exist; correct the name");
}

fs::path local_copy(const std::string& path_or_name, const util::ByteProgress& progress) {
  if (!is_remote(path_or_name)) return path_or_name;
  check_name(path_or_name);
  static std::mutex mutex;
  static auto* const copies = new std::map<std::string, fs::path>;
  const std::lock_guard lock(mutex);
  if (const auto found = copies->find(path_or_name); found != copies->end()) {
    std::error_code error;
    if (fs::exists(found->second, error)) return found->second;
  }
  const bool has_lists = !scheme_of(path_or_name).starts_with("http");
  const std::vector<ListedObject> listed =
      has_lists ? object_store(path_or_name).list(path_or_name) : std::vector<ListedObject>{};
  const fs::path copy =
      listed.empty() ? copy_object(path_or_name, progress) : copy_folder(path_or_name, listed, progress);
  (*copies)[path_or_name] = copy;
  return copy;
}

}  // namespace fsdp::objects
