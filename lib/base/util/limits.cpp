#include "base/util/limits.h"

#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <new>
#include <optional>

namespace fsdp::util {
namespace {

constexpr rlim_t kFewestFiles = 64, kUsualFiles = 1024;

/// The soft limit; nothing if there is none.
std::optional<rlim_t> limit_of(__rlimit_resource_t resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

std::string limit_text(__rlimit_resource_t resource, const char* name) {
  const auto limit = limit_of(resource);
  return limit ? concat(" (the limit on ", name, ", is ", *limit, " bytes)") : "";
}

}  // namespace

void prepare_for_limits() {
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= kUsualFiles) return;
  files.rlim_cur = std::min(kUsualFiles, files.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur >= kFewestFiles) return;
  fail(ErrorKind::kUsage, "this process may have only ", files.rlim_cur,
       " files and connections open at once (ulimit -n), but needs at least ", kFewestFiles,
       "; raise the limit, for example with ulimit -n ", kUsualFiles);
}

void make_room_for_files(int64_t more, const std::string& purpose) {
  int64_t open = 0;
  std::error_code unreadable;
  for (std::filesystem::directory_iterator entry("/proc/self/fd", unreadable), end;
       !unreadable && entry != end; entry.increment(unreadable)) {
    ++open;
  }
  rlimit files{};
  const auto needed = static_cast<rlim_t>(open + more);
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= needed) return;
  files.rlim_cur = std::min(needed, files.rlim_max);
  if (::setrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur == needed) return;
  fail(ErrorKind::kUsage, purpose, ", for which this process needs ", needed,
       " files and connections open at once, but it may have only ", files.rlim_max,
       " (ulimit -Hn); raise the limit on this host, by ulimit -n ", needed, " as root, LimitNOFILE=", needed,
       " of a systemd service or --ulimit nofile=", needed, " of a container");
}

std::string file_size_limit_text() { return limit_text(RLIMIT_FSIZE, "the size of files, ulimit -f"); }
std::string address_space_limit_text() { return limit_text(RLIMIT_AS, "address space, ulimit -v"); }

Error without_backtrace(const std::exception& error) {
  if (const auto* ours = dynamic_cast<const Error*>(&error)) return *ours;
  const std::string line = std::string(error.what()).substr(0, std::string(error.what()).find('\n'));
  const size_t tried = line.find("you tried to allocate ");  // libtorch's allocator
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr || tried != std::string::npos) {
    const std::string bytes =
        tried == std::string::npos ? "" : line.substr(line.find_first_of("0123456789", tried));
    return {ErrorKind::kUnexpected,
            concat("out of memory: this process was refused ",
                   bytes.empty() ? "an allocation" : bytes.substr(0, bytes.find(' ')) + " bytes",
                   " by the system", address_space_limit_text())};
  }
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  if (system != nullptr && system->code() == std::errc::resource_unavailable_try_again) {
    return thread_refusal(*system);
  }
  return {ErrorKind::kUnexpected, line};
}

Error thread_refusal(const std::system_error& cause) {
  const auto limit = limit_of(RLIMIT_NPROC);
  return {
      ErrorKind::kUsage,
      concat("the system refused this process another thread (", cause.what(), "); ",
             limit ? concat("this user may have ", *limit, " processes and threads (ulimit -u)")
                   : std::string("no limit is set by ulimit -u"),
             ", and a control group may set a limit too (pids.max); raise the one that was reached, or run "
             "fewer processes or threads (OMP_NUM_THREADS)")};
}

}  // namespace fsdp::util
