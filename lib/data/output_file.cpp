#include "data/output_file.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "util/error.h"
#include "util/file.h"

namespace fsdp::data {
namespace fs = std::filesystem;

OutputFile::OutputFile(const fs::path& path) : path_(path), temporary_(path) {
  if (path_.has_parent_path()) util::make_writable_folder(path_.parent_path());
  temporary_ += util::concat(".tmp-", ::getpid());
  file_ = std::fopen(temporary_.c_str(), "w+be");
  if (file_ == nullptr) fail_with_errno("open");
}

OutputFile::~OutputFile() {
  if (file_ != nullptr) std::fclose(file_);
  if (!committed_) ::unlink(temporary_.c_str());
}

void OutputFile::append(const void* data, int64_t bytes) {
  FSDP_CHECK(file_ != nullptr, "append after finish");
  const auto count = static_cast<size_t>(bytes);
  if (std::fwrite(data, 1, count, file_) != count) fail_with_errno("write");
}

void OutputFile::overwrite(int64_t offset, const void* data, int64_t bytes) {
  if (std::fseek(file_, offset, SEEK_SET) != 0) fail_with_errno("write");
  append(data, bytes);
  if (std::fseek(file_, 0, SEEK_END) != 0) fail_with_errno("write");
}

void OutputFile::read_back(int64_t offset, void* data, int64_t bytes) {
  const auto count = static_cast<size_t>(bytes);
  if (std::fseek(file_, offset, SEEK_SET) != 0) fail_with_errno("write");
  if (std::fread(data, 1, count, file_) != count) fail_with_errno("read");
  if (std::fseek(file_, 0, SEEK_END) != 0) fail_with_errno("read");
}

void OutputFile::finish() {
  FSDP_CHECK(file_ != nullptr, "finish twice");
  if (std::fflush(file_) != 0) fail_with_errno("write");
  if (::fsync(::fileno(file_)) != 0) fail_with_errno("flush");
  if (std::fclose(std::exchange(file_, nullptr)) != 0) fail_with_errno("close");
}

void OutputFile::commit() {
  FSDP_CHECK(file_ == nullptr, "commit before finish");
  util::rename_and_sync(temporary_, path_);
  committed_ = true;
}

void OutputFile::fail_with_errno(const char* action) const {
  util::fail(util::ErrorKind::kIo, "cannot ", action, " ", temporary_.string(), ": ", util::errno_text(errno),
             "; nothing was written to ", path_.string(),
             ", so make room or choose another path and run again");
}

}  // namespace fsdp::data
