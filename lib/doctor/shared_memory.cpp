#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <exception>

#include "comm/shared_segment.h"
#include "doctor/checks.h"
#include "util/error.h"

namespace fsdp::doctor {
namespace {

constexpr int64_t kBytes = int64_t{1} << 30;  // of address space; a page of it is used
constexpr int kDone = 0, kCannotOpen = 1;

/// What another rank of the host does: opens the segment through /proc and writes to it.
int write_as_other_process(const comm::SharedSegment& segment, pid_t owner, int64_t offset) {
  try {
    const auto mapped = comm::SharedSegment::open(owner, segment.fd(), segment.size(), segment.sign());
    *reinterpret_cast<std::atomic<uint64_t>*>(mapped->data() + offset) = segment.sign();
    return kDone;
  } catch (const std::exception&) {
    return kCannotOpen;
  }
}

}  // namespace

Finding check_shared_memory() {
  const char* remedy =
      "ranks of this host will talk over gloo, which is slower; allow memfd_create and /proc/PID/fd of "
      "one's own processes (a container's seccomp profile, hidepid)";
  try {
    const auto segment = comm::SharedSegment::create(kBytes);
    const auto block = comm::SharedSegment::take_common(segment, comm::SharedSegment::kPage);
    if (!block) return {Verdict::kWarn, "shared memory", "no memory for a page of it", remedy};
    auto& word = *static_cast<std::atomic<uint64_t>*>(block->data());
    word = 0;
    const pid_t owner = ::getpid();
    const pid_t child = ::fork();
    if (child == 0) ::_exit(write_as_other_process(*segment, owner, block->offset));
    int status = -1;
    if (child < 0 || ::waitpid(child, &status, 0) != child) {
      return {Verdict::kFail, "shared memory", "no second process: " + util::errno_text(errno),
              "raise the limit on processes (ulimit -u, the container's pids limit)"};
    }
    if (status != 0 || word != segment->sign()) {
      return {Verdict::kWarn, "shared memory", "a second process could not open the memory through /proc",
              remedy};
    }
    return {Verdict::kOk, "shared memory", "a second process wrote to memory of this one (memfd)", ""};
  } catch (const std::exception& error) {
    return {Verdict::kWarn, "shared memory", error.what(), remedy};
  }
}

}  // namespace fsdp::doctor
