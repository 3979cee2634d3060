// The stores of libarrow as ObjectStores (cloud_library.h).

#include <arrow/buffer.h>
#include <arrow/filesystem/gcsfs.h>
#include <arrow/filesystem/s3fs.h>
#include <arrow/io/interfaces.h>
#include <arrow/util/io_util.h>
#include <arrow/util/key_value_metadata.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/objects/cloud_library.h"
#include "base/objects/shared_answers.h"

namespace fsdp::objects {
namespace {

namespace fs = arrow::fs;

constexpr int64_t kPartBytes = int64_t{8} << 20;

std::string environment(std::initializer_list<const char*> variables) {
  for (const char* variable : variables) {
    if (const char* value = std::getenv(variable); value != nullptr && *value != '\0') return value;
  }
  return "";
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// The kind of an error, by the name that the AWS SDK and Google's library give it in its text.
FaultKind kind_of(const arrow::Status& status) {
  const std::string text = status.ToString();
  if (arrow::internal::ErrnoFromStatus(status) == ENOENT) return FaultKind::kMissing;
  for (const std::string_view missing :
       {"NO_SUCH_BUCKET", "NO_SUCH_KEY", "NOT_FOUND", "RESOURCE_NOT_FOUND"}) {
    if (contains(text, missing)) return FaultKind::kMissing;
  }
  for (const std::string_view refused :
       {"ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "INVALID_CLIENT_TOKEN_ID",
        "EXPIRED_TOKEN", "MISSING_AUTHENTICATION_TOKEN", "UNRECOGNIZED_CLIENT", "PERMISSION_DENIED",
        "UNAUTHENTICATED", "Could not create a OAuth2 access token"}) {
    if (contains(text, refused)) return FaultKind::kRefused;
  }
  if (contains(text, "INVALID_RANGE") || contains(text, "InvalidRange")) return FaultKind::kChanged;
  return status.IsInvalid() || status.IsNotImplemented() ? FaultKind::kPermanent : FaultKind::kTransient;
}

/// Throws the fault of a status that is not a success.
void require(const arrow::Status& status) {
  if (!status.ok()) throw StoreFault(kind_of(status), status.message());
}

template <typename Value>
Value value_of(arrow::Result<Value> result) {
  require(result.status());
  return std::move(result).ValueUnsafe();
}

/// The path of an object in libarrow: "bucket/key".
std::string path_of(const std::string& name) {
  std::string path = name.substr(name.find("://") + 3);
  while (path.ends_with('/')) path.pop_back();
  return path;
}

class CloudStore final : public ObjectStore {
 public:
  explicit CloudStore(std::shared_ptr<fs::FileSystem> files) : files_(std::move(files)) {}

  std::optional<ObjectInfo> find(const std::string& name) override {
    auto opened = files_->OpenInputFile(path_of(name));
    if (!opened.ok()) {
      if (kind_of(opened.status()) != FaultKind::kMissing) require(opened.status());
      return std::nullopt;
    }
    return info_of(**opened);
  }

  void read(const std::string& name, const ObjectInfo& object, int64_t offset, int64_t bytes,
            char* out) override {
    fs::FileInfo known(path_of(name), fs::FileType::File);
    known.set_size(object.size_bytes);  // spares a request
    const auto file = value_of(files_->OpenInputFile(known));
    const int64_t received = value_of(file->ReadAt(offset, bytes, out));
    if (received != bytes) {
      throw StoreFault(FaultKind::kTransient, "the answer has " + std::to_string(received) +
                                                  " bytes instead of " + std::to_string(bytes));
    }
    // A request for bytes does not name the version, so the object is examined again after it.
    require_same(
        examined_.ask(name, [&] { return info_of(*value_of(files_->OpenInputFile(path_of(name)))); }),
        object);
  }

  void download(const std::string& name, const ObjectInfo& object,
                const std::filesystem::path& path) override {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0) throw StoreFault(FaultKind::kPermanent, failure_of(path));
    std::unique_ptr<const int, void (*)(const int*)> closes(&fd, [](const int* open) { ::close(*open); });
    std::string part;
    for (int64_t begin = 0; begin < object.size_bytes; begin += kPartBytes) {
      part.resize(static_cast<size_t>(std::min(kPartBytes, object.size_bytes - begin)));
      read(name, object, begin, static_cast<int64_t>(part.size()), part.data());
      for (size_t done = 0; done < part.size();) {
        const ssize_t written = ::write(fd, part.data() + done, part.size() - done);
        if (written < 0 && errno != EINTR) throw StoreFault(FaultKind::kPermanent, failure_of(path));
        done += static_cast<size_t>(std::max<ssize_t>(written, 0));
      }
    }
  }

  std::vector<ListedObject> list(const std::string& folder) override {
    fs::FileSelector selector;
    selector.base_dir = path_of(folder);
    selector.recursive = true;
    selector.allow_not_found = true;
    std::vector<ListedObject> listed;
    for (const fs::FileInfo& info : value_of(files_->GetFileInfo(selector))) {
      if (!info.IsFile() || info.path().size() <= selector.base_dir.size() + 1) continue;
      listed.push_back({.name = info.path().substr(selector.base_dir.size() + 1), .size_bytes = info.size()});
    }
    return listed;
  }

  void upload(const std::string& name, const std::filesystem::path& path) override {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) throw StoreFault(FaultKind::kPermanent, failure_of(path));
    std::unique_ptr<const int, void (*)(const int*)> closes(&fd, [](const int* open) { ::close(*open); });
    const auto to = value_of(files_->OpenOutputStream(path_of(name)));
    std::string part(static_cast<size_t>(kPartBytes), '\0');
    try {
      for (;;) {
        const ssize_t bytes = ::read(fd, part.data(), part.size());
        if (bytes < 0 && errno == EINTR) continue;
        if (bytes < 0) throw StoreFault(FaultKind::kPermanent, failure_of(path));
        if (bytes == 0) break;
        require(to->Write(part.data(), bytes));
      }
    } catch (...) {
      static_cast<void>(to->Abort());  // what was sent is not an object
      throw;
    }
    require(to->Close());
  }

  void remove(const std::string& name) override {
    const arrow::Status status = files_->DeleteFile(path_of(name));
    if (!status.ok() && kind_of(status) != FaultKind::kMissing) require(status);
  }

 private:
  static std::string failure_of(const std::filesystem::path& path) {
    return "the file " + path.string() + " fails: " + std::strerror(errno);
  }

  static ObjectInfo info_of(arrow::io::RandomAccessFile& file) {
    ObjectInfo info{.size_bytes = value_of(file.GetSize())};
    const auto metadata = value_of(file.ReadMetadata());
    for (const char* key : {"ETag", "etag", "generation", "Last-Modified"}) {
      if (!info.version.empty() || !metadata) break;
      if (const auto value = metadata->Get(key); value.ok()) info.version = *value;
    }
    std::erase(info.version, '"');
    return info;
  }

  static void require_same(const ObjectInfo& found, const ObjectInfo& expected) {
    if (found.size_bytes == expected.size_bytes && found.version == expected.version) return;
    throw StoreFault(FaultKind::kChanged,
                     "it had " + std::to_string(expected.size_bytes) + " bytes (version " + expected.version +
                         ") when it was opened, and has " + std::to_string(found.size_bytes) + " (version " +
                         found.version + ") now");
  }

  std::shared_ptr<fs::FileSystem> files_;
  SharedAnswers<ObjectInfo> examined_;
};

/// Divides "http://localhost:9000" into scheme and host.
std::pair<std::string, std::string> divided(const std::string& endpoint) {
  const size_t mark = endpoint.find("://");
  std::string host = mark == std::string::npos ? endpoint : endpoint.substr(mark + 3);
  while (host.ends_with('/')) host.pop_back();
  return {mark == std::string::npos ? "https" : endpoint.substr(0, mark), host};
}

std::shared_ptr<fs::FileSystem> connect_to_s3() {
  if (!fs::IsS3Initialized()) {
    fs::S3GlobalOptions global = fs::S3GlobalOptions::Defaults();
    global.log_level = fs::S3LogLevel::Off;
    require(fs::InitializeS3(global));
  }
  fs::S3Options options = fs::S3Options::Defaults();
  // A public bucket is read without credentials.
  if (options.GetAccessKey().empty()) options = fs::S3Options::Anonymous();
  options.region = environment({"AWS_REGION", "AWS_DEFAULT_REGION"});
  if (const std::string endpoint = environment({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"});
      !endpoint.empty()) {
    std::tie(options.scheme, options.endpoint_override) = divided(endpoint);
    if (options.region.empty()) options.region = "us-east-1";
  }
  options.connect_timeout = 10;
  options.request_timeout = 20;
  options.retry_strategy = fs::S3RetryStrategy::GetAwsStandardRetryStrategy(/*max_attempts=*/3);
  options.background_writes = false;
  std::shared_ptr<fs::FileSystem> files = value_of(fs::S3FileSystem::Make(options));
  // Registered after libarrow has made its own objects, so that it is called before they are destroyed.
  static const int registered = std::atexit([] { static_cast<void>(fs::EnsureS3Finalized()); });
  static_cast<void>(registered);
  return files;
}

std::shared_ptr<fs::FileSystem> connect_to_google() {
  fs::GcsOptions options = fs::GcsOptions::Defaults();
  const std::string emulator = environment({"CLOUD_STORAGE_EMULATOR_ENDPOINT", "STORAGE_EMULATOR_HOST"});
  if (!emulator.empty()) {
    options = fs::GcsOptions::Anonymous();
    const std::string with_scheme = contains(emulator, "://") ? emulator : "http://" + emulator;
    std::tie(options.scheme, options.endpoint_override) = divided(with_scheme);
  }
  options.retry_limit_seconds = 30;
  return value_of(fs::GcsFileSystem::Make(options));
}

class Library final : public CloudLibrary {
 public:
  std::unique_ptr<ObjectStore> connect(const std::string& scheme) override {
    return std::make_unique<CloudStore>(scheme == "gs" ? connect_to_google() : connect_to_s3());
  }
};

}  // namespace
}  // namespace fsdp::objects

fsdp::objects::CloudLibrary* fsdp_cloud_library() {
  static auto* library = new fsdp::objects::Library;  // never destroyed: other threads may still read
  return library;
}

const char* fsdp_cloud_built_for() { return FSDP_BUILT_FOR; }
