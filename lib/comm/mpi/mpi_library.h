#pragma once

// MpiLibrary: what comm.backend = "mpi" needs of the system's MPI. It is implemented by a module of its own (mpi/mpi_module.cpp), which is
// loaded only when that backend is chosen, so that programs do not link an MPI, whose binary interfaces differ.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace fsdp::comm {

/// All methods may be called from any thread; they are run one at a time, and return without waiting for other ranks unless stated
/// otherwise. They throw std::runtime_error with MPI's own text.
class MpiLibrary {
 public:
  using Group = void*;    ///< a communicator of MPI; lives until end()
  using Request = void*;  ///< an operation under way, whose memory must stay; null: done

  struct World {
    int rank = 0, size = 1;
    int local_rank = 0, local_size = 1;  ///< among the ranks that can share memory
    int max_tag = 0;
    std::string version{};  ///< "Open MPI v4.1.4"
    Group group = nullptr;  ///< of all ranks, not shared with other users of MPI in this process
  };

  struct Message {
    int from = 0, tag = 0;
    int64_t bytes = 0;
  };

  /// Initializes MPI, unless this process has done so, with the threads that this needs. Collective. Once a process.
  virtual World begin() = 0;
  /// `ranks` of a group, which are to be together at this call: it waits for them. A call of begin(), end() and this one blocks the others.
  virtual Group make_group(Group of, const std::vector<int>& ranks) = 0;
  /// Ends MPI, if begin() has initialized it. Collective.
  virtual void end() = 0;
  /// Ends all processes of the run.
  virtual void abort(int exit_code) = 0;

  virtual Request send(Group group, int to, int tag, const void* data, int64_t bytes) = 0;
  virtual Request receive(Group group, int from, int tag, void* data, int64_t bytes) = 0;
  /// `bytes` of each rank, kMostBytes of all at most; an all-gather's `in` may be its place in `out`.
  virtual Request all_gather(Group group, void* out, const void* in, int64_t bytes) = 0;
  virtual Request broadcast(Group group, void* data, int64_t bytes, int root) = 0;
  virtual Request barrier(Group group) = 0;
  static constexpr int64_t kMostBytes = int64_t{1} << 30;  ///< of a call: MPI 3 counts them by an int

  /// Whether the operation is done; it becomes null then. Moves all others on too.
  virtual bool is_done(Request& request) = 0;
  /// A message that has come and is not yet received, from this rank, or -1 for any, with this tag.
  virtual std::optional<Message> probe(Group group, int from, int tag) = 0;

 protected:
  ~MpiLibrary() = default;
};

}  // namespace fsdp::comm

/// The module has both; the text must be that of the program that loads it (kMpiBuiltFor).
extern "C" [[gnu::visibility("default")]] fsdp::comm::MpiLibrary* fsdp_mpi_library();
extern "C" [[gnu::visibility("default")]] const char* fsdp_mpi_built_for();
