#pragma once

// MpiLibrary: the functions of the system's MPI that comm.backend = "mpi" needs. A separate module
// (mpi/module/mpi_module.cpp) implements them and is loaded only when that backend is chosen, so that
// programs do not link an MPI, whose binary interfaces differ.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fsdp::comm {

/// All methods may be called from any thread and are run one at a time. They return without waiting for other
/// ranks unless stated otherwise, and throw std::runtime_error with MPI's own text.
class MpiLibrary {
 public:
  using GroupHandle = void*;  ///< a communicator of MPI; lives until end()
  using Request = void*;      ///< an operation under way, whose memory must stay; null: done

  struct World {
    int rank = 0, size = 1;
    int local_rank = 0, local_size = 1;  ///< among the ranks that can share memory
    int max_tag = 0;
    std::string version{};        ///< "Open MPI v4.1.4"
    GroupHandle group = nullptr;  ///< group of all ranks, not shared with other users of MPI in this process
  };

  struct MpiMessage {
    int from = 0, tag = 0;
    int64_t bytes = 0;
  };

  /// Initializes MPI with the threads that the backend needs, unless this process has done so. Collective.
  /// Called once per process.
  virtual World begin() = 0;
  /// Makes a group of `ranks` and waits for them, so all must call it at this point. A call of begin(), end()
  /// or this method blocks the others.
  virtual GroupHandle make_group(GroupHandle of, const std::vector<int>& ranks) = 0;
  /// Ends MPI if begin() has initialized it. Collective.
  virtual void end() = 0;
  /// Ends all processes of the run.
  virtual void abort(int exit_code) = 0;

  virtual Request send(GroupHandle group, int to, int tag, const void* data, int64_t bytes) = 0;
  virtual Request receive(GroupHandle group, int from, int tag, void* data, int64_t bytes) = 0;
  /// Gathers `bytes` from each rank, at most kMostBytes in all. `in` may be this rank's place in `out`.
  virtual Request all_gather(GroupHandle group, void* out, const void* in, int64_t bytes) = 0;
  virtual Request broadcast(GroupHandle group, void* data, int64_t bytes, int root) = 0;
  virtual Request barrier(GroupHandle group) = 0;
  /// Most bytes of one call: MPI 3 counts them by an int.
  static constexpr int64_t kMostBytes = int64_t{1} << 30;

  /// Whether the operation is done; `request` becomes null then. All other operations make progress too.
  virtual bool is_done(Request& request) = 0;
  /// A message that has arrived and is not yet received, from this rank, or -1 for any, with this tag.
  virtual std::optional<MpiMessage> probe(GroupHandle group, int from, int tag) = 0;

 protected:
  ~MpiLibrary() = default;
};

}  // namespace fsdp::comm

/// Functions of the module (base/util/module.h).
extern "C" [[gnu::visibility("default")]] fsdp::comm::MpiLibrary* fsdp_mpi_library();
extern "C" [[gnu::visibility("default")]] const char* fsdp_mpi_built_for();
