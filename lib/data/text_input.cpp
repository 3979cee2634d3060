#include "data/text_input.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "data/foreign_content.h"
#include "util/error.h"

namespace fsdp::data {
namespace fs = std::filesystem;

std::vector<std::string> expand_patterns(const std::vector<std::string>& texts) {
  std::vector<std::string> files;
  for (const std::string& text : texts) {
    std::error_code error;
    bool pattern = text.find_first_of("*?[") != std::string::npos && !fs::exists(text, error);
    if (!pattern) {
      files.push_back(text);
      continue;
    }
    glob_t found{};
    int code = ::glob(text.c_str(), 0, nullptr, &found);
    for (size_t i = 0; code == 0 && i < found.gl_pathc; ++i) files.emplace_back(found.gl_pathv[i]);
    ::globfree(&found);
    if (code != 0) {
      util::fail(util::ErrorKind::kData, "no file matches the pattern ", text,
                 "; correct it or list the files by name");
    }
  }
  return files;
}

bool is_json_lines(const std::string& path) {
  std::string extension = fs::path(path).extension().string();
  return extension == ".jsonl" || extension == ".ndjson";
}

TextInput::TextInput(const std::string& path) : path_(path) {
  if (path_ == kStandardInput) {
    path_ = "standard input";
    fd_ = STDIN_FILENO;
    return;
  }
  // O_NONBLOCK: opening a pipe without a writer would otherwise wait for one.
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) refuse("cannot be opened (" + util::errno_text(errno) + "); give the path of a readable file");
  try {
    examine();
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

TextInput::~TextInput() {
  if (fd_ != STDIN_FILENO) ::close(fd_);
}

void TextInput::examine() {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) refuse("cannot be examined (" + util::errno_text(errno) + ")");
  if (S_ISDIR(status.st_mode)) refuse("is a folder; give the files in it, for example FOLDER/*.txt");
  if (!S_ISREG(status.st_mode)) refuse("is not a regular file; write the text to a file or give it as -");
  if (status.st_size == 0) refuse("is empty; leave it out");
  size_bytes_ = status.st_size;
  std::string head(512, '\0');
  const ssize_t got = ::pread(fd_, head.data(), head.size(), 0);
  head.resize(got > 0 ? static_cast<size_t>(got) : 0);
  if (const auto foreign = foreign_to_text(head, path_))
    refuse(util::concat(foreign->found, "; ", foreign->remedy));
}

int64_t TextInput::read(int64_t bytes, std::string& buffer) {
  if (size_bytes_ >= 0) bytes = std::min(bytes, size_bytes_ - read_bytes_);
  size_t before = buffer.size();
  buffer.resize(before + static_cast<size_t>(bytes));
  int64_t done = 0;
  while (done < bytes) {
    ssize_t got = ::read(fd_, buffer.data() + before + done, static_cast<size_t>(bytes - done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse("cannot be read (" + util::errno_text(errno) + "); check the disk and run again");
    if (got == 0) break;
    done += got;
  }
  buffer.resize(before + static_cast<size_t>(done));
  read_bytes_ += done;
  if (done < bytes && size_bytes_ >= 0) {
    refuse("became shorter while it was read; run again when nothing writes to it");
  }
  return done;
}

void TextInput::refuse(const std::string& reason) const {
  util::fail(util::ErrorKind::kData, "the text ", path_, " ", reason);
}

}  // namespace fsdp::data
