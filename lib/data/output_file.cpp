#include "data/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "util/error.h"
#include "util/file.h"

namespace fsdp::data {
namespace {
constexpr size_t kBufferBytes = 1 << 20;
}

OutputFile::OutputFile(const std::filesystem::path& path) : path_(path), temporary_(path) {
  if (path_.has_parent_path()) util::make_writable_folder(path_.parent_path());
  temporary_ += util::concat(".tmp-", ::getpid());
  fd_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) fail_with_errno("open");
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!committed_) ::unlink(temporary_.c_str());
}

void OutputFile::append(const void* data, int64_t bytes) {
  FSDP_CHECK(fd_ >= 0, "append after finish");
  buffer_.append(static_cast<const char*>(data), static_cast<size_t>(bytes));
  if (buffer_.size() >= kBufferBytes) flush();
}

void OutputFile::overwrite(int64_t offset, const void* data, int64_t bytes) {
  flush();
  FSDP_CHECK(offset >= 0 && bytes >= 0 && offset <= written_bytes_ - bytes);
  write_all(static_cast<const char*>(data), bytes, offset);
}

void OutputFile::read_back(int64_t offset, void* data, int64_t bytes) {
  flush();
  FSDP_CHECK(offset >= 0 && bytes >= 0 && offset <= written_bytes_ - bytes);
  for (int64_t done = 0; done < bytes;) {
    ssize_t count =
        ::pread(fd_, static_cast<char*>(data) + done, static_cast<size_t>(bytes - done), offset + done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail_with_errno("read");
    done += count;
  }
}

void OutputFile::flush() {
  write_all(buffer_.data(), static_cast<int64_t>(buffer_.size()), written_bytes_);
  written_bytes_ += static_cast<int64_t>(buffer_.size());
  buffer_.clear();
}

void OutputFile::write_all(const char* data, int64_t bytes, int64_t offset) {
  for (int64_t done = 0; done < bytes;) {
    ssize_t count = ::pwrite(fd_, data + done, static_cast<size_t>(bytes - done), offset + done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_with_errno("write");
    done += count;
  }
}

void OutputFile::finish() {
  FSDP_CHECK(fd_ >= 0, "finish twice");
  flush();
  if (::fsync(fd_) != 0) fail_with_errno("flush");
  int fd = fd_;
  fd_ = -1;
  if (::close(fd) != 0) fail_with_errno("close");
}

void OutputFile::commit() {
  FSDP_CHECK(fd_ < 0, "commit before finish");
  util::rename_and_sync(temporary_, path_);
  committed_ = true;
}

void OutputFile::fail_with_errno(const char* action) const {
  util::fail(util::ErrorKind::kIo, "cannot ", action, " ", temporary_.string(), ": ", util::errno_text(errno),
             "; nothing was written to ", path_.string(),
             ", so make room or choose another path and run again");
}

}  // namespace fsdp::data
