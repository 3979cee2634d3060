#include "data/tokens/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/objects/local_copy.h"
#include "base/util/error.h"

namespace fsdp::data {

MappedFile::MappedFile(std::string kind, const std::string& path) : kind_(std::move(kind)), path_(path) {
  // O_NONBLOCK: opening a pipe without a writer would otherwise wait for one.
  fd_ = ::open(objects::local_copy(path).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0)
    refuse("cannot be opened (" + util::errno_text(errno) + ")", "give the path of a readable file");
  try {
    map();
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

MappedFile::~MappedFile() {
  range_.reset();
  if (data_ != nullptr) ::munmap(const_cast<char*>(data_), static_cast<size_t>(size_bytes_));
  ::close(fd_);
}

void MappedFile::map() {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) {
    refuse("cannot be examined (" + util::errno_text(errno) + ")", "give the path of a readable file");
  }
  if (S_ISDIR(status.st_mode)) refuse("is a folder", "give the files in it one by one");
  if (!S_ISREG(status.st_mode)) refuse("is not a regular file", "write it to a file first");
  size_bytes_ = status.st_size;
  if (size_bytes_ == 0) return;
  void* address = ::mmap(nullptr, static_cast<size_t>(size_bytes_), PROT_READ, MAP_SHARED, fd_, 0);
  if (address == MAP_FAILED) {
    refuse("cannot be mapped into memory (" + util::errno_text(errno) + ")",
           "put it on a file system that allows it, or raise the limit on memory (ulimit -v)");
  }
  data_ = static_cast<const char*>(address);
  range_.emplace(data_, static_cast<size_t>(size_bytes_), kind_ + " " + path_);
}

int64_t MappedFile::current_size_bytes() const {
  struct stat status {};
  return ::fstat(fd_, &status) == 0 ? static_cast<int64_t>(status.st_size) : 0;
}

void MappedFile::release(int64_t begin, int64_t bytes) const {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  auto first = reinterpret_cast<uintptr_t>(data_ + begin) / page * page;
  auto last = reinterpret_cast<uintptr_t>(data_ + begin + bytes);
  ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

void MappedFile::refuse(const std::string& found, const std::string& remedy) const {
  fail(ErrorKind::kData, "the ", kind_, " ", path_, " ", found, "; ", remedy);
}

}  // namespace fsdp::data
