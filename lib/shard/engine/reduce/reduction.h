#pragma once

// Reduction: how the gradients of one unit become the gradient of this rank's shard. There is a class for
// each way, chosen once for a unit by make_reduction():
//
//   GroupReduction     a reduce-scatter among the ranks that share the unit
//   ReplicaReduction   and an all-reduce among the ranks that hold the same shard (hybrid sharding)
//   SliceReduction     and a second reduce-scatter in its place (hybrid_optimizer = "global")
//   HostReduction      any of these, whose result moves to host memory (move_grads_to_cpu)
//   SampleReduction    sums in an order that does not depend on the number of ranks (sums_by_sample)
//
// All of them are collective. One thread; the collectives run in the queues of the communicators.

#include <functional>
#include <memory>

namespace fsdp::shard {

class Unit;

class Reduction {
 public:
  /// Ranks over which gradients are reduced.
  enum class Reach {
    kSlice,  ///< the ranks that share the unit; the shard's gradient is a sum that replicas have others of
    kAll,    ///< these and all replicas or slices
  };

  virtual ~Reduction() = default;

  /// Issues the reduction of the gradients that the unit has accumulated. One with kAll includes the sums of
  /// earlier ones with kSlice. Requires: kAll, unless adds_before_all_reduce() (shard/units/unit_sizes.h).
  virtual void start(Reach reach) = 0;
  /// Waits until the buffer of the whole unit's gradients has been given back; a second collective may still
  /// be under way.
  virtual void finish_sending() = 0;
  /// Waits until the gradient has been reduced over slices and copied to the host, if it is kept there, so
  /// that memory on the device is free; no effect while an all-reduce is under way.
  virtual void finish_moving() = 0;
  /// Waits until the mean over ranks has been added to the shard's gradient; no effect without a reduction.
  virtual void finish() = 0;
  /// Whether finish() has something to wait for, where gradients stay on the device.
  virtual bool is_under_way() const = 0;
  /// Runs `use` once the reductions issued so far are in the shard's gradient: on the host's thread, when the
  /// host can read it, if the gradient moves to host memory, otherwise at once, with the stream in which the
  /// gradient becomes complete as the current one. finish() waits for `use`, or for what it has launched, and
  /// rethrows its exception. Requires: a device.
  virtual void use_gradient(std::function<void()> use) = 0;
  /// Waits for collectives of a failed step, whose errors that step reports.
  virtual void reset() = 0;
};

/// The way that the unit's options and groups ask for. `unit` must outlive the result.
std::unique_ptr<Reduction> make_reduction(Unit& unit);

}  // namespace fsdp::shard
