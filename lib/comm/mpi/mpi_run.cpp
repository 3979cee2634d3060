#include "comm/mpi/mpi_run.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <thread>

#include "base/util/error.h"
#include "base/util/module.h"
#include "base/util/text.h"

namespace fsdp::comm {
namespace {

using Clock = std::chrono::steady_clock;

MpiLibrary& load_library() {
  return *static_cast<MpiLibrary*>(util::load_module(
      {.name = "mpi",
       .feature = "comm.backend = \"mpi\"",
       .remedy =
           "install an MPI (Debian: libopenmpi-dev or libmpich-dev) and build again, set comm.backend to auto",
       // Open MPI loads parts of its own, which look for its symbols among the global ones.
       .global_symbols = true}));
}

bool done_within(MpiLibrary& library, MpiLibrary::Request& request, std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  for (MpiPause pause; !library.is_done(request); pause()) {
    if (Clock::now() > deadline) return false;
  }
  return true;
}

/// Identifies a rank's process to the ranks of the same machine, which watch it.
struct WatchedProcess {
  char machine[128];
  int32_t pid;
};

}  // namespace

void MpiPause::operator()() {
  constexpr int kGrowth = 256, kMostDoublings = 6;
  constexpr std::chrono::microseconds kShortest{20};
  if (left_-- > 0) {
    std::this_thread::yield();
    return;
  }
  std::this_thread::sleep_for(kShortest * (1 << std::min(-left_ / kGrowth, kMostDoublings)));
}

MpiRun& MpiRun::get() {
  // Never destroyed: threads may still wait when the process ends.
  static MpiRun* const run = [] {
    auto* const made = new MpiRun(load_library());
    ::on_exit([](int exit_code, void* self) { static_cast<MpiRun*>(self)->leave(exit_code); }, made);
    return made;
  }();
  return *run;
}

MpiRun::MpiRun(MpiLibrary& library) : library_(library) {
  try {
    world_ = library_.begin();
    if (world_.size == 1) return;
    std::vector<int> all(static_cast<size_t>(world_.size));
    for (int rank = 0; rank < world_.size; ++rank) all[static_cast<size_t>(rank)] = rank;
    store_group_ = library_.make_group(world_.group, all);
    members_.push_back({world_.group, world_.rank, world_.size});
    meet_processes();
  } catch (const std::exception& error) {
    util::fail(
        ErrorKind::kUsage, "comm.backend = \"mpi\": MPI does not begin in this process: ", error.what(),
        "; start the processes with the mpirun of the MPI that the module was built with, or with srun, "
        "or set comm.backend to auto");
  }
}

void MpiRun::meet_processes() {
  const HostIdentity host = HostIdentity::read();
  WatchedProcess own{.machine = {}, .pid = ::getpid()};
  (host.boot_id + host.pid_namespace).copy(own.machine, sizeof(own.machine) - 1);
  std::vector<WatchedProcess> all(static_cast<size_t>(world_.size));
  auto gathered = library_.all_gather(world_.group, all.data(), &own, sizeof(own));
  for (MpiPause pause; !library_.is_done(gathered);) pause();
  for (int rank = 0; rank < world_.size; ++rank) {
    const WatchedProcess& process = all[static_cast<size_t>(rank)];
    const bool watched = rank != world_.rank && std::strcmp(process.machine, own.machine) == 0;
    pid_fds_.push_back(watched ? static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)) : -1);
  }
}

LaunchEnvironment MpiRun::environment() const {
  const LaunchEnvironment told = read_launch_environment();
  if (told.has_launcher && told.world_size != world_.size) {
    util::fail(ErrorKind::kUsage,
               "comm.backend = \"mpi\" requires processes that a launcher of MPI has started, but ",
               world_.version, " knows of ", world_.size, " and the environment of ", told.world_size,
               "; start them with mpirun or srun --mpi=pmix, or set comm.backend to auto");
  }
  LaunchEnvironment environment{.rank = world_.rank,
                                .world_size = world_.size,
                                .local_rank = world_.local_rank,
                                .local_world_size = world_.local_size};
  environment.has_launcher = world_.size > 1 || told.has_launcher;
  return environment;
}

RunStore MpiRun::store(std::chrono::milliseconds timeout) {
  return make_mpi_store(library_, store_group_, world_, timeout);
}

bool MpiRun::has_ended(int rank) const {
  const int fd = pid_fds_[static_cast<size_t>(rank)];
  pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
  return fd >= 0 && ::poll(&entry, 1, 0) > 0;
}

MpiLibrary::GroupHandle MpiRun::make_group(MpiLibrary::GroupHandle of, const std::vector<int>& ranks,
                                           int rank) {
  MpiLibrary::GroupHandle group = library_.make_group(of, ranks);
  const std::lock_guard lock(mutex_);
  members_.push_back({group, rank, static_cast<int>(ranks.size())});
  return group;
}

void MpiRun::send_to_others(MpiLibrary::GroupHandle group, int rank, int size, int tag,
                            std::string_view text) {
  try {
    for (int other = 0; other < size; ++other) {
      if (other == rank) continue;
      auto sent = library_.send(group, other, tag, text.data(), static_cast<int64_t>(text.size()));
      library_.is_done(sent);
    }
  } catch (const std::exception&) {
    // A rank that cannot be reached waits for no message.
  }
}

void MpiRun::tell(MpiLibrary::GroupHandle group, int rank, int size, int tag) {
  send_to_others(group, rank, size, tag, "");
}

void MpiRun::post(const std::string& text) {
  // The text is kept: a lost rank does not receive it.
  send_to_others(store_group_, world_.rank, world_.size, kPostTag, *new std::string(text));
}

std::optional<std::pair<int, std::string>> MpiRun::next_post() {
  try {
    if (world_.size == 1) return std::nullopt;
    const auto message = library_.probe(store_group_, -1, kPostTag);
    if (!message) return std::nullopt;
    auto text = std::make_unique<std::string>(static_cast<size_t>(message->bytes), ' ');
    auto received = library_.receive(store_group_, message->from, kPostTag, text->data(), message->bytes);
    constexpr std::chrono::milliseconds kOfSmallText{500};
    if (done_within(library_, received, kOfSmallText)) return std::pair(message->from, std::move(*text));
    (void)text.release();  // MPI may still write it
  } catch (const std::exception&) {
    // MPI has failed, or has ended.
  }
  return std::nullopt;
}

void MpiRun::leave(int exit_code) {
  constexpr std::chrono::milliseconds kForOthers{60'000}, kAfterErrors{1'000};
  try {
    if (exit_code != 0) {
      for (const MpiMember& member : members_) tell(member.group, member.rank, member.size, kLeftTag);
    }
    auto barrier = failed_ ? nullptr : library_.barrier(world_.group);
    if (!failed_ && done_within(library_, barrier, exit_code == 0 ? kForOthers : kAfterErrors)) {
      library_.end();
      return;
    }
    // Other ranks are about to report the failure.
    if (failed_) std::this_thread::sleep_for(kAfterErrors);
  } catch (const std::exception&) {
    // MPI has failed.
  }
  library_.abort(exit_code != 0 ? exit_code : static_cast<int>(ErrorKind::kPeerLost));
}

}  // namespace fsdp::comm
