#include "base/util/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>

#include "base/util/error.h"
#include "base/util/regular_file.h"

namespace fsdp::util {
namespace fs = std::filesystem;
namespace {

/// Linux transfers at most about 2 GiB per call; smaller pieces also let a process react to signals sooner.
constexpr size_t kLargestTransfer = size_t{1} << 30;

constexpr const char* kTemporaryMark = ".tmp-";  ///< followed by the writer's process id
constexpr const char* kProbePrefix = ".probe-";

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

class CheckedDescriptor {
 public:
  CheckedDescriptor(int fd, const fs::path& path, const char* purpose) : fd_(fd) {
    if (fd_ < 0) fail(ErrorKind::kIo, "cannot open ", path.string(), " ", purpose, ": ", errno_text(errno));
  }
  ~CheckedDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  CheckedDescriptor(const CheckedDescriptor&) = delete;
  CheckedDescriptor& operator=(const CheckedDescriptor&) = delete;
  int get() const { return fd_; }
  int close() {
    int fd = fd_;
    fd_ = -1;
    return ::close(fd);
  }

 private:
  int fd_;
};

/// Whether the Hugging Face hub allows it as the name of an owner or a model.
bool is_hub_name(std::string_view name) {
  constexpr size_t kLongest = 96;
  return !name.empty() && name.size() <= kLongest && name.front() != '.' && name.front() != '-' &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return (c < 128 && std::isalnum(c) != 0) || c == '-' || c == '_' || c == '.';
         });
}

/// "gpt2.safetensors", but not "Llama-3.2-1B".
bool has_file_suffix(const std::string& name) {
  constexpr const char* kSuffixes[] = {".safetensors", ".json", ".model", ".bin",  ".pt",
                                       ".pth",         ".ckpt", ".txt",   ".toml", ".gguf"};
  return std::any_of(std::begin(kSuffixes), std::end(kSuffixes),
                     [&](const char* suffix) { return name.ends_with(suffix); });
}

}  // namespace

std::string read_file(const fs::path& path) {
  const OpenedFile opened = open_regular(path);
  if (opened.found != nullptr) fail(ErrorKind::kIo, path.string(), " must be a file, but is ", opened.found);
  errno = opened.error;
  const CheckedDescriptor file(opened.fd, path, "for reading");
  std::string content;
  char buffer[1 << 16];
  for (;;) {
    ssize_t count = ::read(file.get(), buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(ErrorKind::kIo, "cannot read ", path.string(), ": ", errno_text(errno));
    if (count == 0) return content;
    content.append(buffer, static_cast<size_t>(count));
  }
}

bool is_there(const fs::path& path) {
  std::error_code error;
  const auto type = fs::status(path, error).type();
  if (type == fs::file_type::none) {
    fail(ErrorKind::kIo, "cannot examine ", path.string(), ": ", error.message());
  }
  return type != fs::file_type::not_found;
}

void write_all(int fd, std::string_view content, const fs::path& path) {
  while (!content.empty()) {
    const ssize_t count = ::write(fd, content.data(), std::min(content.size(), kLargestTransfer));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(ErrorKind::kIo, "cannot write ", path.string(), ": ", errno_text(errno));
    content.remove_prefix(static_cast<size_t>(count));
  }
}

void write_file_atomically(const fs::path& path, std::string_view content) {
  const fs::path temporary = temporary_name(path);
  try {
    CheckedDescriptor file(create_own_file(temporary), temporary, "for writing");
    write_all(file.get(), content, temporary);
    if (::fsync(file.get()) != 0 || file.close() != 0) {
      fail(ErrorKind::kIo, "cannot flush ", temporary.string(), ": ", errno_text(errno));
    }
    rename_and_sync(temporary, path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

fs::path temporary_name(const fs::path& path) {
  fs::path temporary = path;
  return temporary += concat(kTemporaryMark, ::getpid());
}

bool is_temporary_name(std::string_view name) {
  if (name.starts_with(kProbePrefix)) return is_number(name.substr(std::string_view(kProbePrefix).size()));
  size_t mark = name.rfind(kTemporaryMark);
  return mark != std::string_view::npos && mark > 0 &&
         is_number(name.substr(mark + std::string_view(kTemporaryMark).size()));
}

void start_writing_out(const fs::path& path) {
  const CheckedDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC), path, "to flush it");
  ::sync_file_range(file.get(), 0, 0, SYNC_FILE_RANGE_WRITE);
}

void sync_path(const fs::path& path) {
  const CheckedDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC), path, "to flush it");
  if (::fsync(file.get()) != 0) fail(ErrorKind::kIo, "cannot flush ", path.string(), ": ", errno_text(errno));
}

void rename_and_sync(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    fail(ErrorKind::kIo, "cannot rename ", from.string(), " to ", to.string(), ": ", errno_text(errno));
  }
  sync_path(to.has_parent_path() ? to.parent_path() : fs::path("."));
}

void limit_permissions(const std::string& octal) {
  const auto readable = static_cast<mode_t>(std::stoul(octal, nullptr, 8));
  const mode_t allowed = readable | (readable & 0444) >> 2;
  const mode_t before = ::umask(0777);
  ::umask(before | (~allowed & 0777));
}

void make_writable_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error || !fs::is_directory(folder)) {
    fail(ErrorKind::kIo, "cannot create the folder ", folder.string(), ": ",
         error ? error.message() : "a file of that name is in the way");
  }
  fs::path probe = folder / concat(kProbePrefix, ::getpid());
  const int fd = create_own_file(probe);
  if (fd < 0) fail(ErrorKind::kIo, "cannot write into the folder ", folder.string(), ": ", errno_text(errno));
  ::close(fd);
  ::unlink(probe.c_str());
}

std::string hub_remedy(const std::string& name) {
  const size_t slash = name.find('/');
  const bool has_owner = slash != std::string::npos;
  const std::string owner = has_owner ? name.substr(0, slash) : "",
                    model = name.substr(has_owner ? slash + 1 : 0);
  std::error_code error;
  const bool is_name =
      is_hub_name(model) && (!has_owner || (is_hub_name(owner) && !fs::exists(owner, error)));
  if (!is_name || has_file_suffix(name)) return "";
  return concat("; if that is a model's name on the Hugging Face hub, ",
                has_owner ? concat("give hf://", name, ", or ") : "", "fetch it with `hf download ", name,
                " --local-dir models/", model, "` and give models/", model);
}

}  // namespace fsdp::util
