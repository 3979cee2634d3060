#include "data/token_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "data/token_files.h"
#include "util/error.h"
#include "util/file.h"

namespace fsdp::data {

TokenWriter::TokenWriter(const std::filesystem::path& path) : path_(path), temporary_(path) {
  if (path_.has_parent_path()) util::make_writable_folder(path_.parent_path());
  temporary_ += util::concat(".tmp-", ::getpid());
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail_with_errno("open");
}

TokenWriter::~TokenWriter() {
  if (fd_ >= 0) ::close(fd_);
  if (!committed_) ::unlink(temporary_.c_str());
}

void TokenWriter::append(const std::vector<int64_t>& ids) {
  FSDP_CHECK(fd_ >= 0, "append after finish");
  std::vector<uint16_t> tokens;
  tokens.reserve(ids.size());
  for (int64_t id : ids) {
    FSDP_CHECK(id >= 0 && id < kMaxVocabSize, "id ", id, " does not fit into a token file");
    tokens.push_back(static_cast<uint16_t>(id));
  }
  const char* next = reinterpret_cast<const char*>(tokens.data());
  for (size_t left = tokens.size() * sizeof(uint16_t); left > 0;) {
    ssize_t count = ::write(fd_, next, left);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_with_errno("write");
    next += count;
    left -= static_cast<size_t>(count);
  }
  size_ += static_cast<int64_t>(tokens.size());
}

void TokenWriter::finish() {
  if (::fsync(fd_) != 0) fail_with_errno("flush");
  int fd = fd_;
  fd_ = -1;
  if (::close(fd) != 0) fail_with_errno("close");
}

void TokenWriter::commit() {
  FSDP_CHECK(fd_ < 0, "commit before finish");
  util::rename_and_sync(temporary_, path_);
  committed_ = true;
}

void TokenWriter::fail_with_errno(const char* action) const {
  util::fail(util::ErrorKind::kIo, "cannot ", action, " ", temporary_.string(), ": ", util::errno_text(errno),
             "; nothing was written to ", path_.string(),
             ", so make room or choose another path and run again");
}

}  // namespace fsdp::data
