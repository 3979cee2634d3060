// The module of comm.backend = "mpi": the only source that includes <mpi.h>. It needs nothing of the program
// that loads it.

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <stdexcept>

#include "comm/mpi/mpi_library.h"

namespace fsdp::comm {
namespace {

void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING + 1> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw std::runtime_error(std::string(what) + ": " + std::string(text.data(), static_cast<size_t>(length)));
}

int count_of(int64_t bytes) {
  if (bytes > MpiLibrary::kMostBytes) throw std::runtime_error("a message is too large for MPI to count it");
  return static_cast<int>(bytes);
}

MPI_Comm& comm_of(MpiLibrary::GroupHandle group) { return *static_cast<MPI_Comm*>(group); }

MpiLibrary::GroupHandle owned(MPI_Comm comm) {
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  return std::make_unique<MPI_Comm>(comm).release();
}

/// Makes one call of MPI at a time (MPI_THREAD_SERIALIZED): few builds of MPI have been tried with concurrent
/// calls.
class Library final : public MpiLibrary {
 public:
  World begin() override {
    const std::lock_guard lock(mutex_);
    int initialized = 0, level = 0;
    MPI_Initialized(&initialized);
    if (initialized != 0) {
      MPI_Query_thread(&level);
    } else {
      check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level), "MPI_Init_thread");
      ends_ = true;
    }
    if (level < MPI_THREAD_SERIALIZED) {
      throw std::runtime_error("this MPI allows calls of one thread only (less than MPI_THREAD_SERIALIZED)");
    }
    World world;
    MPI_Comm comm = MPI_COMM_NULL, local = MPI_COMM_NULL;
    check(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
    world.group = owned(comm);
    MPI_Comm_rank(comm, &world.rank);
    MPI_Comm_size(comm, &world.size);
    check(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, world.rank, MPI_INFO_NULL, &local),
          "MPI_Comm_split_type");
    MPI_Comm_rank(local, &world.local_rank);
    MPI_Comm_size(local, &world.local_size);
    MPI_Comm_free(&local);
    int* most = nullptr;
    int found = 0;
    MPI_Comm_get_attr(comm, MPI_TAG_UB, static_cast<void*>(&most), &found);
    constexpr int kLeastTag = 32767;  // guaranteed by the standard
    world.max_tag = found != 0 ? *most : kLeastTag;
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING + 1> text{};
    int length = 0;
    MPI_Get_library_version(text.data(), &length);
    world.version = std::string(text.data(), static_cast<size_t>(length));
    world.version = world.version.substr(0, world.version.find_first_of(",\n"));
    std::ranges::replace(world.version, '\t', ' ');
    return world;
  }

  GroupHandle make_group(GroupHandle of, const std::vector<int>& ranks) override {
    const std::lock_guard lock(mutex_);
    MPI_Group all = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
    MPI_Comm comm = MPI_COMM_NULL;
    check(MPI_Comm_group(comm_of(of), &all), "MPI_Comm_group");
    check(MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &some), "MPI_Group_incl");
    check(MPI_Comm_create_group(comm_of(of), some, 0, &comm), "MPI_Comm_create_group");
    MPI_Group_free(&some);
    MPI_Group_free(&all);
    return owned(comm);
  }

  void end() override {
    const std::lock_guard lock(mutex_);
    if (ends_) MPI_Finalize();
    ended_ = true;
  }

  // Without the lock: another thread may wait in MPI for a process that is gone.
  void abort(int exit_code) override { MPI_Abort(MPI_COMM_WORLD, exit_code); }

  Request send(GroupHandle group, int to, int tag, const void* data, int64_t bytes) override {
    return start("MPI_Isend", [&](MPI_Request* request) {
      return MPI_Isend(data, count_of(bytes), MPI_BYTE, to, tag, comm_of(group), request);
    });
  }

  Request receive(GroupHandle group, int from, int tag, void* data, int64_t bytes) override {
    return start("MPI_Irecv", [&](MPI_Request* request) {
      return MPI_Irecv(data, count_of(bytes), MPI_BYTE, from, tag, comm_of(group), request);
    });
  }

  Request all_gather(GroupHandle group, void* out, const void* in, int64_t bytes) override {
    const int count = count_of(bytes);
    return start("MPI_Iallgather", [&](MPI_Request* request) {
      int rank = 0;
      MPI_Comm_rank(comm_of(group), &rank);
      const bool in_place = in == static_cast<const char*>(out) + bytes * rank;
      return MPI_Iallgather(in_place ? MPI_IN_PLACE : in, count, MPI_BYTE, out, count, MPI_BYTE,
                            comm_of(group), request);
    });
  }

  Request broadcast(GroupHandle group, void* data, int64_t bytes, int root) override {
    return start("MPI_Ibcast", [&](MPI_Request* request) {
      return MPI_Ibcast(data, count_of(bytes), MPI_BYTE, root, comm_of(group), request);
    });
  }

  Request barrier(GroupHandle group) override {
    return start("MPI_Ibarrier", [&](MPI_Request* request) { return MPI_Ibarrier(comm_of(group), request); });
  }

  bool is_done(Request& request) override {
    if (request == nullptr) return true;
    const std::lock_guard lock(mutex_);
    require_mpi();
    int done = 0;
    check(MPI_Test(static_cast<MPI_Request*>(request), &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done == 0) return false;
    delete static_cast<MPI_Request*>(request);
    request = nullptr;
    return true;
  }

  std::optional<MpiMessage> probe(GroupHandle group, int from, int tag) override {
    const std::lock_guard lock(mutex_);
    require_mpi();
    int found = 0, bytes = 0;
    MPI_Status status;
    check(MPI_Iprobe(from < 0 ? MPI_ANY_SOURCE : from, tag, comm_of(group), &found, &status), "MPI_Iprobe");
    if (found == 0) return std::nullopt;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    return MpiMessage{status.MPI_SOURCE, status.MPI_TAG, bytes};
  }

 private:
  /// Throws in threads that still run after MPI has ended.
  void require_mpi() const {
    if (ended_) throw std::runtime_error("MPI has ended in this process");
  }

  template <typename Call>
  Request start(const char* what, const Call& call) {
    auto request = std::make_unique<MPI_Request>(MPI_REQUEST_NULL);
    const std::lock_guard lock(mutex_);
    require_mpi();
    check(call(request.get()), what);
    return request.release();
  }

  std::mutex mutex_;
  bool ends_ = false;  ///< whether end() finalizes MPI: another part of the process may have initialized it
  bool ended_ = false;
};

}  // namespace
}  // namespace fsdp::comm

fsdp::comm::MpiLibrary* fsdp_mpi_library() {
  // Never destroyed: threads of the program may still be waiting when the process ends.
  static auto* library = new fsdp::comm::Library;
  return library;
}

const char* fsdp_mpi_built_for() { return FSDP_BUILT_FOR; }
