#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "launch/rendezvous.h"
#include "util/error.h"

namespace fsdp::launch {
namespace {

constexpr mode_t kOwnerOnly = 0600;

[[noreturn]] void fail_io(const char* what, const std::string& path) {
  util::fail(util::ErrorKind::kIo, "cannot ", what, " the token file ", path, ": ", util::errno_text(errno),
             "; choose another token_file in --rdzv-conf");
}

/// Writes the file under another name first, so that no node reads half a token.
void make_token_file(const std::string& path) {
  const std::string temporary = util::concat(path, ".", ::getpid());
  const Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kOwnerOnly));
  if (!file.is_open()) fail_io("make", path);
  const std::string token = new_run_id() + new_run_id();
  const bool written = ::write(file.get(), token.data(), token.size()) == static_cast<ssize_t>(token.size());
  // link() leaves a file alone that another launcher has made by now.
  const bool linked = written && (::link(temporary.c_str(), path.c_str()) == 0 || errno == EEXIST);
  const int cause = errno;
  ::unlink(temporary.c_str());
  errno = cause;
  if (!linked) fail_io("write", path);
}

}  // namespace

std::optional<std::string> job_token(const std::string& token_file, bool is_host) {
  const char* given = std::getenv(kTokenVariable);
  if (given && *given) return given;
  if (token_file.empty()) return "";
  if (is_host && ::access(token_file.c_str(), F_OK) != 0) make_token_file(token_file);
  const Descriptor file(::open(token_file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open() && errno == ENOENT) return std::nullopt;
  struct stat info;
  if (!file.is_open() || ::fstat(file.get(), &info) != 0) fail_io("read", token_file);
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    util::fail(util::ErrorKind::kUsage, "expected the token file ", token_file,
               " to be readable by its owner alone, found mode ", std::oct, info.st_mode & ACCESSPERMS,
               "; chmod 600 it");
  }
  char text[4096];
  const ssize_t count = ::read(file.get(), text, sizeof(text));
  if (count < 0) fail_io("read", token_file);
  std::string token(text, static_cast<size_t>(count));
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  if (token.empty()) util::fail(util::ErrorKind::kUsage, "the token file ", token_file, " is empty");
  return token;
}

}  // namespace fsdp::launch
