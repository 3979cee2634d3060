#include "data/token_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>

#include "util/error.h"

namespace fsdp::data {

using util::ErrorKind;
using util::fail;

static_assert(std::endian::native == std::endian::little,
              "token files are little-endian and mapped as they are");

/// One mapped file. The descriptor stays open, so that the size can be asked again: touching a page that a
/// truncation has taken away kills the process with SIGBUS.
class TokenFiles::MappedFile {
 public:
  explicit MappedFile(const std::string& path) : path_(path) {
    // O_NONBLOCK: opening a pipe without a writer would otherwise wait for one.
    fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd_ < 0)
      refuse("cannot be opened (" + util::errno_text(errno) + ")", "give the path of a readable file");
    try {
      map();
    } catch (...) {
      ::close(fd_);
      throw;
    }
  }
  ~MappedFile() {
    ::munmap(const_cast<uint16_t*>(tokens_), static_cast<size_t>(size_) * sizeof(uint16_t));
    ::close(fd_);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  int64_t size() const { return size_; }

  /// The tokens from `begin` on, after making sure that `count` of them are still there.
  const uint16_t* tokens(int64_t begin, int64_t count) const {
    struct stat status {};
    int64_t needed_bytes = (begin + count) * static_cast<int64_t>(sizeof(uint16_t));
    if (::fstat(fd_, &status) != 0 || status.st_size < needed_bytes) {
      fail(ErrorKind::kData, "the token file ", path_, " had ", size_,
           " tokens when it was opened and now has ", status.st_size / 2,
           "; leave it alone while it is in use (replace it by a rename) and start again");
    }
    return tokens_ + begin;
  }

  /// Only advice, so a refusal is no error. A page that other tokens share may go too; it comes back.
  void release(int64_t begin, int64_t count) const {
    const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    auto first = reinterpret_cast<uintptr_t>(tokens_ + begin) / page * page;
    auto last = reinterpret_cast<uintptr_t>(tokens_ + begin + count);
    ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
  }

 private:
  [[noreturn]] void refuse(const std::string& found, const std::string& remedy) const {
    fail(ErrorKind::kData, "the token file ", path_, " ", found, "; ", remedy);
  }

  void map() {
    struct stat status {};
    if (::fstat(fd_, &status) != 0) {
      refuse("cannot be examined (" + util::errno_text(errno) + ")", "give the path of a readable file");
    }
    if (S_ISDIR(status.st_mode)) refuse("is a folder", "give the files in it one by one");
    if (!S_ISREG(status.st_mode)) refuse("is not a regular file", "write the tokens to a file first");
    if (status.st_size == 0) refuse("is empty", "make it anew with fsdp-data tokenize");
    if (status.st_size % 2 != 0) {
      refuse(util::concat("has an odd number of bytes (", status.st_size,
                          ") where two bytes a token were expected"),
             "it was cut off or is no token file, so make it anew with fsdp-data tokenize");
    }
    void* address = ::mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_SHARED, fd_, 0);
    if (address == MAP_FAILED) {
      refuse("cannot be mapped into memory (" + util::errno_text(errno) + ")",
             "put it on a file system that allows it, or raise the limit on memory (ulimit -v)");
    }
    tokens_ = static_cast<const uint16_t*>(address);
    size_ = status.st_size / 2;
  }

  std::string path_;
  int fd_ = -1;
  const uint16_t* tokens_ = nullptr;
  int64_t size_ = 0;
};

TokenFiles::TokenFiles(const std::vector<std::string>& paths) : paths_(paths) {
  FSDP_CHECK(!paths_.empty(), "no token files");
  int64_t end = 0;
  for (const std::string& path : paths_) {
    files_.push_back(std::make_unique<MappedFile>(path));
    ends_.push_back(end += files_.back()->size());
  }
}

TokenFiles::~TokenFiles() = default;
TokenFiles::TokenFiles(TokenFiles&&) noexcept = default;
TokenFiles& TokenFiles::operator=(TokenFiles&&) noexcept = default;

int64_t TokenFiles::size() const { return ends_.back(); }

int64_t TokenFiles::file_size(size_t i) const { return files_.at(i)->size(); }

size_t TokenFiles::file_of(int64_t position) const {
  return static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), position) - ends_.begin());
}

template <typename Visit>
void TokenFiles::for_each_part(int64_t begin, int64_t count, const Visit& visit) const {
  FSDP_CHECK(begin >= 0 && count >= 0 && begin <= size() - count, "tokens ", begin, " + ", count, " of ",
             size());
  for (size_t i = file_of(begin); count > 0; ++i) {
    int64_t here = std::min(count, ends_[i] - begin);
    visit(*files_[i], begin - (ends_[i] - files_[i]->size()), here);
    begin += here;
    count -= here;
  }
}

template <typename Token>
void TokenFiles::read_as(int64_t begin, int64_t count, Token* out) const {
  for_each_part(begin, count, [&out](const MappedFile& file, int64_t first, int64_t here) {
    out = std::copy_n(file.tokens(first, here), here, out);
  });
}

void TokenFiles::release(int64_t begin, int64_t count) const {
  for_each_part(begin, count,
                [](const MappedFile& file, int64_t first, int64_t here) { file.release(first, here); });
}

void TokenFiles::read(int64_t begin, int64_t count, uint16_t* out) const { read_as(begin, count, out); }
void TokenFiles::read(int64_t begin, int64_t count, int64_t* out) const { read_as(begin, count, out); }

TokenFiles::Position TokenFiles::locate(int64_t position) const {
  FSDP_CHECK(position >= 0 && position < size(), "token ", position, " of ", size());
  size_t i = file_of(position);
  return {paths_[i], position - (ends_[i] - files_[i]->size())};
}

namespace {
[[noreturn]] void refuse_id(const TokenFiles& files, int64_t position, int64_t id, int64_t vocab_size) {
  TokenFiles::Position where = files.locate(position);
  fail(ErrorKind::kData, "token ", where.token, " of ", where.path, " has the id ", id,
       " where ids below model.vocab_size = ", vocab_size,
       " were expected; set model.vocab_size to at least ", id + 1,
       " or tokenize the text with the tokenizer of the model");
}
}  // namespace

void check_ids(const TokenFiles& files, int64_t begin, int64_t count, const int64_t* ids,
               int64_t vocab_size) {
  for (int64_t i = 0; i < count; ++i) {
    if (ids[i] >= vocab_size) refuse_id(files, begin + i, ids[i], vocab_size);
  }
}

void check_all_ids(const TokenFiles& files, int64_t vocab_size) {
  constexpr int64_t kChunkTokens = 1 << 19;
  std::vector<uint16_t> chunk(static_cast<size_t>(std::min(files.size(), kChunkTokens)));
  for (int64_t begin = 0; begin < files.size(); begin += kChunkTokens) {
    int64_t count = std::min(kChunkTokens, files.size() - begin);
    files.read(begin, count, chunk.data());
    files.release(begin, count);
    // The largest id first: a loop that the compiler turns into vector instructions.
    if (*std::max_element(chunk.begin(), chunk.begin() + count) < vocab_size) continue;
    for (int64_t i = 0; i < count; ++i) {
      if (chunk[static_cast<size_t>(i)] >= vocab_size) {
        refuse_id(files, begin + i, chunk[static_cast<size_t>(i)], vocab_size);
      }
    }
  }
}

}  // namespace fsdp::data
