#pragma once

// Communicator: the collectives of one group of ranks, the only way in which ranks talk.
//
// Every method is collective but those that say otherwise, rank(), world_size() and allocate(): all ranks of
// the group call the same methods in the same order. A failed collective throws util::Error of kind kPeerLost
// or kTimeout whose text names the collective, its purpose (see CallSite) and the ranks that did not answer;
// after that the group cannot be used again; the error comes out of the call or of wait(). One thread a rank
// issues collectives.
//
// Collectives run in the order of issue. Backends complete them at the call; make_queued_communicator() lets
// them run beside the caller, in a thread, and make_device_communicator() in a stream of a device. What
// make_communicator() and run_ranks_as_threads() give is queued.

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "util/error.h"

namespace fsdp::comm {

/// What a collective is for, for messages and traces. The strings must outlive the call only.
struct CallSite {
  std::string unit;            ///< the unit it serves, or what it is about ("gradient norm")
  const char* pass = "other";  ///< forward, backward, optimizer, other
};

enum class ReduceOp { kSum, kMax };

/// A collective or task under way. The tensors given to it must not be touched until it is done; a Work that
/// is destroyed without waiting lets it go on, with all that it uses kept alive.
class Work {
 public:
  virtual ~Work() = default;
  /// Waits until this rank's result is there; throws what went wrong. Call it at most once. On a device it is
  /// the caller's stream that waits, not the caller.
  virtual void wait() = 0;
  /// In place of wait(): on a device the caller waits too.
  virtual void synchronize() { wait(); }
};

/// The Work of what was done at the call.
std::unique_ptr<Work> done_work();

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  virtual std::string backend_name() const = 0;

  /// Where allocate() puts buffers. A communicator of another device than the CPU takes tensors in host
  /// memory as well; see comm/device_communicator.h.
  virtual at::Device device() const { return at::kCPU; }

  /// output [W * n] = the ranks' inputs [n] one after another. The input may be this rank's part of the
  /// output.
  virtual std::unique_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input,
                                           const CallSite& site) = 0;

  /// output [n] = the sum over ranks of part `rank` of input [W * n], added in rank order.
  virtual std::unique_ptr<Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                               const CallSite& site) = 0;

  /// tensor = its sum or maximum over ranks, in place.
  virtual std::unique_ptr<Work> all_reduce(const at::Tensor& tensor, ReduceOp op, const CallSite& site) = 0;

  /// tensor = rank `root`'s tensor, in place.
  virtual std::unique_ptr<Work> broadcast(const at::Tensor& tensor, int root, const CallSite& site) = 0;

  virtual void barrier(const CallSite& site) = 0;

  /// Runs `task` on this rank in the order of issue: the collectives issued before it have their results by
  /// then, those issued after it have not begun. It may restore the memory that later collectives use. It
  /// issues no collectives itself. What it throws is thrown here or by wait(), and then the group cannot be
  /// used again. Not collective. By default it runs at once, as is right where collectives are complete at
  /// the call.
  virtual std::unique_ptr<Work> enqueue(std::function<void()> task);

  /// Runs `task`, which gives memory back, when what was issued before no longer uses it: as enqueue() does
  /// where collectives run on the host. On a device, where a task runs long before what it launches, wait()
  /// of the Work runs it, or else its destruction: then the caller's stream, to which the memory goes, has
  /// waited.
  virtual std::unique_ptr<Work> enqueue_release(std::function<void()> task);

  /// A buffer for collectives, uninitialised, 1-D. The communicator decides where its memory lies.
  virtual at::Tensor allocate(int64_t numel, at::ScalarType dtype) = 0;
  /// The same in host memory.
  virtual at::Tensor allocate_on_host(int64_t numel, at::ScalarType dtype);

  /// Runs `task` as enqueue() does, with `nbytes` of memory that is the same one for all ranks of the group,
  /// or with null on all of them where there is none to share. Collective. It is used again when every rank
  /// has given it back. An all-gather whose output begins there copies this rank's part to its place, if it
  /// is not there already, and no other; who has such memory writes nowhere else in it. By default there is
  /// none.
  virtual std::unique_ptr<Work> enqueue_with_common_memory(int64_t nbytes, const CallSite& site,
                                                           std::function<void(c10::DataPtr)> task);
  /// Whether there is such memory, as far as the system has it; the same on all ranks.
  virtual bool has_common_memory() const { return false; }
  /// Takes that much of it from the system at once when it is first asked for, for who knows what will be.
  /// Every piece has util::Arena::kAlignment bytes beside its own.
  virtual void reserve_common_memory(int64_t /*nbytes*/) {}

  /// The communicator of `ranks`, ranks of this group in ascending order with this one among them; there they
  /// are numbered from 0. Called by exactly these ranks, who wait for each other; whoever makes several
  /// groups makes them in one order on all ranks. `name` says in messages what the group is ("data"), and
  /// messages number ranks as the whole run does.
  ///
  /// Its collectives have an order of their own: they do not wait for those of this group. A group of one is
  /// a SingleCommunicator, and a group of all is this communicator itself.
  virtual std::shared_ptr<Communicator> subgroup(const std::string& name, const std::vector<int>& ranks) = 0;

 protected:
  /// For subgroup(): checks `ranks`, and answers for the groups that need not be made; null for others.
  std::shared_ptr<Communicator> existing_subgroup(const std::string& name, const std::vector<int>& ranks);
};

/// An error that every rank of the group throws alike, so that one of them can speak for all.
class AgreedError : public util::Error {
 public:
  using util::Error::Error;
};

/// Every rank's text, in rank order. Collective.
std::vector<std::string> all_gather_text(Communicator& communicator, const std::string& text,
                                         const CallSite& site);

/// Runs `body` on every rank; if it throws anywhere, every rank throws an AgreedError of the kind and with
/// the message of the lowest such rank, and which ranks saw a failure when not all did. Collective, so that
/// no rank waits for one that has given up.
void agree(Communicator& communicator, const std::string& purpose, const std::function<void()>& body);

}  // namespace fsdp::comm
