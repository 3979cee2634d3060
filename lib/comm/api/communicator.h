#pragma once

// Communicator: the collectives of one group of ranks, which exchange data through it alone.
//
// All methods are collective except rank(), world_size(), backend_name(), device(), allocate*(), enqueue*()
// and common_memory(): every rank of the group must call the same methods in the same order, from one thread
// per rank. A collective that fails throws util::Error of kind kPeerLost or kTimeout, from the call or from
// Work::wait(). The message names the collective, its purpose (CallSite) and the ranks that did not answer.
// The group must not be used after a failure.
//
// Collectives run in the order of issue. The backends (gloo, shared memory, threads) complete them before the
// call returns; make_queued_communicator() runs them in a thread beside the caller, and
// make_device_communicator() in a stream of a device. Communicators from make_communicator() and
// run_ranks_as_threads() are asynchronous in this way.

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/util/error.h"

namespace fsdp::comm {

/// The purpose of a collective, for messages and traces. `pass` must stay valid for the duration of the call.
struct CallSite {
  std::string unit;            ///< the FSDP unit, or another purpose ("gradient norm")
  const char* pass = "other";  ///< forward, backward, optimizer, other
};

/// How a reduction combines the ranks' elements: their sum, or the largest.
enum class ReduceOp { kSum, kMax };

/// Changes a rank's sums in place before they are stored, while they are in the cache. Called for consecutive
/// runs of kFinishedRun sums; the last run may be shorter.
using FinishSums = std::function<void(float* sums, int64_t n)>;
inline constexpr int64_t kFinishedRun = 512;

struct Coding;  // comm/api/coding.h
using CodingPtr = std::shared_ptr<const Coding>;

/// A collective or task in progress. Its tensors must not be touched until it is done. Dropped without a
/// wait, it goes on: on the host it keeps its tensors, on a device the caller must, until its stream waits.
class Work {
 public:
  virtual ~Work() = default;
  /// Waits for this rank's result; throws the error of a failed operation. Must be called at most once. On a
  /// device the caller's current stream waits; the calling thread does not.
  virtual void wait() = 0;
  /// Like wait(), but on a device the calling thread waits as well, and gets the error of an operation that
  /// has failed there.
  virtual void synchronize() { wait(); }
};

using WorkPtr = std::unique_ptr<Work>;

/// The Work of an operation that completed before the call returned.
WorkPtr done_work();

/// Memory that all ranks of a group share, into which an all-gather moves only each rank's own part.
/// Available with shared memory on one host, with threads as ranks, and through their decorators; see
/// Communicator::common_memory().
class CommonMemory {
 public:
  virtual ~CommonMemory() = default;

  /// Runs `task` as Communicator::enqueue() does, with `nbytes` of the shared memory, or with null on all
  /// ranks if the system has no memory left to share. Collective. The memory is reused once every rank has
  /// released its pointer. An all-gather whose output begins there writes only this rank's part, unless the
  /// input is that part already; ranks must not write anywhere else in the memory.
  virtual WorkPtr enqueue_with_memory(int64_t nbytes, const CallSite& site,
                                      std::function<void(c10::DataPtr)> task) = 0;
  /// Sets how much memory is taken from the system, in one piece, at the first request. Each request needs
  /// util::Arena::kAlignment bytes in addition. Not collective.
  virtual void reserve(int64_t nbytes) = 0;
};

/// One rank's end of a group of ranks.
class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  virtual std::string backend_name() const = 0;

  /// The device of the buffers that allocate() returns. A communicator of a GPU accepts tensors in host
  /// memory as well; see make_device_communicator().
  virtual at::Device device() const { return at::kCPU; }

  /// output [W * n] = the ranks' inputs [n], concatenated in rank order. The input may alias this rank's part
  /// of the output.
  virtual WorkPtr all_gather(const at::Tensor& output, const at::Tensor& input, const CallSite& site) = 0;

  /// output [n] = the sum over ranks of part rank() of their inputs [W * n], added in the order of
  /// sum_in_rank_order() (memory_operations.h).
  virtual WorkPtr reduce_scatter(const at::Tensor& output, const at::Tensor& input, const CallSite& site) = 0;

  /// reduce_scatter() of float32 in host memory, followed by `finish` for the output. By default in two
  /// passes.
  virtual WorkPtr reduce_scatter_and_finish(const at::Tensor& output, const at::Tensor& input,
                                            FinishSums finish, const CallSite& site);

  /// tensor = the sum or maximum of the ranks' tensors, in place.
  virtual WorkPtr all_reduce(const at::Tensor& tensor, ReduceOp op, const CallSite& site) = 0;

  /// tensor = the tensor of rank `root`, in place.
  virtual WorkPtr broadcast(const at::Tensor& tensor, int root, const CallSite& site) = 0;

  /// output [n] = the input [n] of the previous rank; the first rank receives the last one's. Both tensors
  /// are contiguous, of any shape, and do not overlap. A rank is done when its two neighbours have taken
  /// part, so it may learn of the failure of another rank only from the next collective. Empty tensors are
  /// not sent.
  virtual WorkPtr shift(const at::Tensor& output, const at::Tensor& input, const CallSite& site) = 0;

  virtual void barrier(const CallSite& site) = 0;

  // The same collectives of floating-point tensors, with parts that are coded on the links
  // (comm/api/coding.h): in an all-gather and the second half of an all-reduce, all ranks decode the same
  // bytes of each part, its owner too; a reduction encodes what each part of it sends, once, and adds float32
  // in rank order. Each has a default in terms of all_gather() and all_to_all().

  virtual WorkPtr coded_all_gather(const at::Tensor& output, const at::Tensor& input, const CodingPtr& coding,
                                   const CallSite& site);
  /// `finish` may be empty.
  virtual WorkPtr coded_reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                       const CodingPtr& coding, const FinishSums& finish,
                                       const CallSite& site);
  /// tensor = the sum of the ranks' tensors, in place.
  virtual WorkPtr coded_all_reduce(const at::Tensor& tensor, const CodingPtr& coding, const CallSite& site);
  /// Number of parts of n elements that coded_reduce_scatter() encodes on a rank, its own included: one for
  /// each rank, or for each host where the ranks of a host add up first. Not collective.
  virtual int coded_parts() const { return world_size(); }

  /// Bytes of links by which traces count a part, the payload of an all-gather or a reduce-scatter, and a
  /// tensor that is all-reduced. Not collective.
  virtual int64_t link_bytes_of_part(const at::Tensor& part) const {
    return static_cast<int64_t>(part.nbytes());
  }
  virtual int64_t link_bytes_of_all_reduce(const at::Tensor& tensor) const {
    return static_cast<int64_t>(tensor.nbytes());
  }

  /// Time for which callers were blocked in wait() while a collective ran, in all groups made from the same
  /// world; the rest of a step's time is this rank's own. A collective counts whole, with the copying that
  /// this rank does in it. nullopt where the time is unknown: for a world of one, for devices, and for
  /// communicators that complete collectives at the call. Not collective.
  virtual std::optional<double> waited_seconds() const { return std::nullopt; }

  /// Whether a reduce-scatter adds float32 in the order of sum_in_rank_order(). Otherwise the order is fixed
  /// too, but different.
  virtual bool adds_in_pairs() const { return true; }

  /// Throws the failure of a collective of a device, which fails after its call, in this group or another
  /// group of the run: what such a collective should have written is invalid. To be called once the host has
  /// waited for the device, before it uses what the device has computed. Not collective. Does nothing on the
  /// host, where Work::wait() throws.
  virtual void check() const {}

  /// Runs `task` on this rank in the order of issue: after the collectives issued before it have completed
  /// and before those issued after it begin. The task may allocate memory that later collectives use; it must
  /// not issue collectives. An exception of the task is thrown by this call or by wait(), and the group must
  /// not be used after it. Not collective. The default, for communicators that complete collectives at the
  /// call, runs the task immediately.
  virtual WorkPtr enqueue(std::function<void()> task);

  /// Runs `task`, which frees memory, once the operations issued before it no longer use that memory. On the
  /// host this is enqueue(). On a device, where tasks run ahead of the kernels that they launch, the task
  /// runs in wait() of the Work, or in its destructor: by then the caller's stream, to which the memory
  /// returns, has waited for those operations.
  virtual WorkPtr enqueue_release(std::function<void()> task);

  /// An uninitialised 1-D buffer in the memory that suits this communicator's collectives best; by default in
  /// host memory.
  virtual at::Tensor allocate(int64_t numel, at::ScalarType dtype);
  /// Like allocate(), in host memory.
  virtual at::Tensor allocate_on_host(int64_t numel, at::ScalarType dtype);

  /// Memory that all ranks of the group share; null on all ranks if there is none. Owned by the communicator.
  virtual CommonMemory* common_memory() { return nullptr; }

  /// A communicator over `ranks`: ascending ranks of this group that include this rank, numbered from 0 in
  /// the new group. Exactly these ranks call it, and wait for each other; a rank in several groups must
  /// create them in the same order as the other ranks. `name` identifies the group in messages ("data");
  /// messages give ranks as numbers in the whole run.
  ///
  /// The subgroup's collectives are not ordered with those of this group. A subgroup of one rank is a
  /// SingleCommunicator; a subgroup of all ranks is this communicator itself.
  virtual std::shared_ptr<Communicator> subgroup(const std::string& name, const std::vector<int>& ranks);

  /// Like subgroup() for two ranks or more, but always with new connections and a new queue, also for all
  /// ranks of this group.
  virtual std::shared_ptr<Communicator> new_group(const std::string& name, const std::vector<int>& ranks) = 0;
  /// Like subgroup(), for tensors in host memory alone: on GPUs no NCCL communicator is made.
  virtual std::shared_ptr<Communicator> host_group(const std::string& name, const std::vector<int>& ranks) {
    return subgroup(name, ranks);
  }
  /// new_group() of all ranks; this communicator itself for a group of one.
  std::shared_ptr<Communicator> duplicate(const std::string& name);

 protected:
  /// output [W * n] = part rank() [n] of the ranks' inputs [W * n], in rank order, except of this rank, whose
  /// own part stays undefined. The tensors are contiguous and do not overlap. Only communicators that reach
  /// the other ranks themselves have it.
  virtual WorkPtr all_to_all(const at::Tensor& output, const at::Tensor& input, const CallSite& site);

  /// Checks `ranks` and returns the communicator of a group that needs no new connections: one rank, or all.
  /// Otherwise null.
  std::shared_ptr<Communicator> existing_subgroup(const std::string& name, const std::vector<int>& ranks);

  /// The neighbours in the ring of a shift.
  int next_rank() const { return (rank() + 1) % world_size(); }
  int previous_rank() const { return (rank() + world_size() - 1) % world_size(); }
  /// Throw if the tensors do not fit together.
  static void check_shift(const at::Tensor& output, const at::Tensor& input, const CallSite& site);
  /// `whole` [W * n] and `part` [n] must be contiguous, and of one type unless `may_differ`.
  void check_whole(const at::Tensor& whole, const at::Tensor& part, bool may_differ = false) const;
};

/// The sum of parts, some of them coded, in the order in which they are added.
class CodedSum {
 public:
  /// `output`: receives the sum; may be one of the parts.
  CodedSum(at::Tensor output, CodingPtr coding) : output_(std::move(output)), coding_(std::move(coding)) {}

  void add(const at::Tensor& part);
  void add_coded(const at::Tensor& bytes);
  /// Writes the output. `finish` may be empty.
  void finish(const FinishSums& finish);

 private:
  at::Tensor output_, sum_;  ///< sum_: fp32
  CodingPtr coding_;
};

/// A world of one: no network and no threads; an all-gather or reduce-scatter is at most a copy.
class SingleCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  std::string backend_name() const override { return "none"; }
  WorkPtr all_gather(const at::Tensor& output, const at::Tensor& input, const CallSite& site) override;
  WorkPtr reduce_scatter(const at::Tensor& output, const at::Tensor& input, const CallSite& site) override {
    return all_gather(output, input, site);
  }
  WorkPtr all_reduce(const at::Tensor&, ReduceOp, const CallSite&) override { return done_work(); }
  WorkPtr broadcast(const at::Tensor& tensor, int root, const CallSite& site) override;
  WorkPtr shift(const at::Tensor& output, const at::Tensor& input, const CallSite& site) override {
    check_shift(output, input, site);
    return all_gather(output.view({-1}), input.view({-1}), site);
  }
  void barrier(const CallSite&) override {}
  std::shared_ptr<Communicator> new_group(const std::string&, const std::vector<int>&) override {
    return shared_from_this();
  }

 protected:
  WorkPtr all_to_all(const at::Tensor&, const at::Tensor&, const CallSite&) override { return done_work(); }
};

/// An error that every rank of the group throws with the same message, so that only one needs to report it.
class AgreedError : public util::Error {
 public:
  using util::Error::Error;
};

/// The texts of all ranks, in rank order. Collective.
std::vector<std::string> all_gather_text(Communicator& communicator, const std::string& text,
                                         const CallSite& site);

/// The text of the lowest rank that gives one, on all ranks; "" if none does. Collective: a maximum of eight
/// bytes and, if there is a text, broadcasts of it.
std::string first_text(Communicator& communicator, const std::string& text, const CallSite& site);

/// Runs `body` on every rank, in the calling thread. If it throws on any rank, every rank throws an
/// AgreedError with the kind and the message of the lowest failing rank, followed by the list of failing
/// ranks unless all failed. Collective: no rank waits for one that has failed. A body may take longer than
/// the time-out of a collective, for example to delete files on a slow disk: the ranks meet twice a second
/// meanwhile, so that it is not mistaken for a lost peer. Requires: the body issues no collectives.
void agree(Communicator& communicator, const std::string& purpose, const std::function<void()>& body);

/// agree() for a body that issues collectives itself or is short. The ranks meet only after the body.
void agree_at_once(Communicator& communicator, const std::string& purpose, const std::function<void()>& body);

}  // namespace fsdp::comm
