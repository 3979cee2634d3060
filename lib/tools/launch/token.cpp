#include "tools/launch/token.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "base/util/error.h"
#include "base/util/sha256.h"
#include "base/util/system.h"
#include "tools/launch/descriptor.h"

namespace fsdp::launch {
namespace {

constexpr mode_t kOwnerOnly = 0600;
constexpr const char* kRemedy =
    "; set FSDP_LAUNCH_TOKEN to the same text on all nodes, or name a file that they share with token_file in "
    "--rdzv-conf";

[[noreturn]] void fail_io(const char* what, const std::string& path) {
  fail(ErrorKind::kIo, "cannot ", what, " the token file ", path, ": ", util::errno_text(errno), kRemedy);
}

/// Makes the token file. Writes it under another name first, so that no node reads half a token.
void make_token_file(const std::string& path) {
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  const std::string temporary = concat(path, ".", ::getpid());
  const Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kOwnerOnly));
  if (!file.is_open()) fail_io("make", path);
  const std::string token = new_secret();
  const bool written = ::write(file.get(), token.data(), token.size()) == static_cast<ssize_t>(token.size());
  // link() keeps a file that another launcher has made in the meantime.
  const bool linked = written && (::link(temporary.c_str(), path.c_str()) == 0 || errno == EEXIST);
  const int cause = errno;
  ::unlink(temporary.c_str());
  errno = cause;
  if (!linked) fail_io("write", path);
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::string proof(const std::string& token, const char* side, const Nonces& nonces) {
  return util::hmac_sha256(token, concat("fsdp-launch ", side, " ", nonces.node, " ", nonces.coordinator));
}

}  // namespace

std::string new_secret() { return util::random_id() + util::random_id(); }

std::string token_file(const RendezvousOptions& options) {
  if (!options.token_file.empty()) return options.token_file;
  std::filesystem::path folder = variable("XDG_CONFIG_HOME");
  if (!folder.is_absolute()) folder = std::filesystem::path(variable("HOME")) / ".config";
  if (!folder.is_absolute()) {
    fail(ErrorKind::kUsage,
         "expected a home folder (HOME) for the token by which the nodes of a run know "
         "each other; found none",
         kRemedy);
  }
  return folder / "fsdp" / "launch-token";
}

std::optional<std::string> job_token(const RendezvousOptions& options, bool is_host) {
  if (!options.token.empty()) return options.token;
  if (const std::string given = variable(kTokenVariable); !given.empty()) return given;
  if (options.trust_network) return "";
  const std::string path = token_file(options);
  if (is_host && ::access(path.c_str(), F_OK) != 0) make_token_file(path);
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open() && errno == ENOENT) return std::nullopt;
  struct stat info;
  if (!file.is_open() || ::fstat(file.get(), &info) != 0) fail_io("read", path);
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    fail(ErrorKind::kUsage, "the token file ", path, " must be readable by its owner alone, but has mode ",
         std::oct, info.st_mode & ACCESSPERMS, "; use chmod 600");
  }
  char text[4096];
  const ssize_t count = ::read(file.get(), text, sizeof(text));
  if (count < 0) fail_io("read", path);
  std::string token(text, static_cast<size_t>(count));
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  if (token.empty()) fail(ErrorKind::kUsage, "the token file ", path, " is empty; remove it");
  return token;
}

std::string proof_of_node(const std::string& token, const Nonces& nonces) {
  return proof(token, "node", nonces);
}

std::string proof_of_coordinator(const std::string& token, const Nonces& nonces) {
  return proof(token, "coordinator", nonces);
}

}  // namespace fsdp::launch
