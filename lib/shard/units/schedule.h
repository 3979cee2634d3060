#pragma once

// Schedule: the order of a step. It takes events (the forward or backward of a unit's stage begins or ends)
// and issues commands (gather, wait, attach gradients, reduce, reshard). It holds no tensors, and allocates
// nothing once a pass has shown how often units are used. Everything that depends on the order of a step runs
// a schedule and reads its commands:
//
//   Engine              executes them on shards and buffers (shard/engine/engine.h)
//   step_formula()      counts them, and the bytes held at once (shard/units/step_formula.h)
//   plan::UnitMemory    adds up memory beside activations (tools/plan/unit_memory.h)
//   plan::StepClock     adds up seconds (tools/plan/time.h)
//   simulate            writes them into the program that it simulates (tools/simulate/step_program.h)
//   schedule_text()     prints them (shard/units/schedule_text.h)
//
// The rules are in docs/design.md and at the code in schedule.cpp that obeys each of them. Single-threaded.
//
// Units are numbered in the order of Engine::units(), the root stage's first. All ranks must use the same
// units in the same order, because each unit that a rank gathers, ahead or not, all ranks gather at that
// place. Only ForwardPrefetch::kExplicit turns a difference into an error that names the units.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shard/units/execution_order.h"
#include "shard/units/options.h"

namespace fsdp::shard {

enum class Pass { kForward, kBackward };

struct Command {
  enum class Action {
    kGatherSlices,     ///< issue the all-gather between slices, which updates the slice's shard
    kWaitForSlices,    ///< wait for that all-gather, for a unit that this forward has not used
    kGather,           ///< issue the all-gather of the unit's parameters
    kWaitForGather,    ///< wait for it; afterwards the unsharded parameters may be used
    kReshard,          ///< free the unsharded parameters
    kAttachGradients,  ///< give autograd a zeroed buffer in which to accumulate the unit's gradients
    kReduce,  ///< issue the reduction of that buffer, and of sums that were left in slices, over the ranks
    kReduceInSlice,     ///< issue the reduction over the ranks that share the unit, not over replicas
    kWaitForSending,    ///< wait until that buffer is given back; later parts of the reduction may continue
    kWaitForMove,       ///< wait for the second collective over slices and for the copy to host memory
    kWaitForReduction,  ///< wait until the mean over the ranks is in the shard's gradient
    kHandOver,          ///< use the shard's gradient once the reductions issued so far have completed it
  };
  Action kind;
  size_t unit;
  Pass pass;

  bool operator==(const Command&) const = default;
};

/// Executes each command before the schedule continues. After an exception from it, call Schedule::reset().
class CommandReader {
 public:
  virtual void read(const Command& command) = 0;

  // Called with "explicit" forward prefetch, before `unit` is used. The number of units stands for the end of
  // forward.

  /// Must compare the unit over all ranks.
  virtual void compare_order(size_t /*unit*/) {}
  /// Reports that the unit is used in place of Schedule::expected_unit().
  virtual void report_changed_order(size_t /*unit*/) {}

 protected:
  ~CommandReader() = default;
};

/// The properties of a unit on which the order depends.
struct ScheduledUnit {
  std::string name;
  bool is_root = false;           ///< whether it belongs to the root stage
  bool is_cut = true;             ///< whether its parameters are sharded over several ranks
  bool is_reduced_twice = false;  ///< whether a second collective, over replicas or slices, follows the first
  bool adds_before_all_reduce = false;  ///< see the function in shard/units/unit_sizes.h
  bool has_slices = false;              ///< whether its shard is cut once more over slices: see kGatherSlices
  bool stays_after_forward = false;     ///< see UnitOptions
  bool stays_in_step = false;  ///< whether it is frozen and stays gathered between the passes of a step
  bool has_trainable_parameters = true;
  bool gradient_moves = false;  ///< whether its gradient is copied from the device to host memory
};

class Schedule {
 public:
  /// `units` begin with those of the root stage. `reader` is not called before the first event.
  /// `host_runs_ahead`: whether the host launches the compute on a device. It changes nothing in a pass that
  /// follows the previous one.
  Schedule(const ShardOptions& options, std::vector<ScheduledUnit> units, CommandReader& reader,
           bool host_runs_ahead = false);

  // ---- events of a unit's stage; unit 0 stands for all units of the root stage

  /// `records`: whether autograd records this pass; ignored for units other than 0.
  void forward_begins(size_t unit, bool records = true);
  /// `backward_follows`: whether the output requires a gradient, or this forward will run again in backward.
  void forward_ends(size_t unit, bool backward_follows = true);
  void backward_begins(size_t unit);
  /// Only for units with an input that requires a gradient.
  void backward_ends(size_t unit);
  /// Called when all gradients of the pass have been computed.
  void whole_backward_ends();

  // ---- between passes

  /// Whether backward passes from now on reduce gradients.
  void set_requires_gradient_sync(bool sync) { sync_ = sync; }
  bool requires_gradient_sync() const { return sync_; }
  /// Whether reductions from now on include the all-reduce over replicas, where it can wait.
  void set_requires_all_reduce(bool all_reduce) { all_reduce_ = all_reduce; }
  /// Whether a backward pass without either has left gradients unreduced.
  bool has_unreduced_gradients() const;
  /// Called when the gradients have been dropped, because a step has ended or begins.
  void forget_gradients();
  /// Called when any weights may have changed, including those of frozen parameters.
  void weights_changed();
  /// Returns every unit to its state at rest, sharded and without gradients, after a failed pass.
  void reset();

  // ---- the state of the step

  /// Number of backward passes that have ended or been abandoned.
  int64_t backward_passes() const { return backward_passes_; }
  /// Number of units of the root stage, which come first.
  size_t root_units() const { return root_units_; }
  bool in_backward() const { return phase_ == Phase::kBackward; }
  bool in_pass() const { return phase_ == Phase::kForward || in_backward(); }
  /// Whether a recorded forward has ended whose backward has not begun.
  bool backward_is_due() const { return phase_ == Phase::kBackwardIsDue; }
  /// Whether a unit is gathered, other than those that stay so between the passes of a step.
  bool any_is_gathered() const;
  /// Frees the units that stay gathered for all of a step; no effect in a pass.
  void reshard_frozen();
  /// Whether autograd records the current forward, also inside parts where recomputation has switched it off.
  bool records() const { return records_; }
  /// The next unit if the current forward follows the previous one; nullopt: the end of forward.
  std::optional<size_t> expected_unit() const { return order_.expected(); }
  /// Number of forwards of units that have begun in this pass.
  size_t position() const { return order_.position(); }

 private:
  enum class Phase { kRest, kForward, kBackwardIsDue, kBackward };
  enum class Parameters { kSharded, kGathering, kUnsharded };

  struct UnitState {
    ScheduledUnit traits;
    Parameters parameters = Parameters::kSharded;
    bool has_gradients = false;        ///< whether gradients are attached and not reduced
    bool is_reduced_in_slice = false;  ///< whether they are reduced in the slice and not over replicas
    bool is_being_reduced = false;
    enum class Slices { kNone, kOld, kGathering, kThere } slices = Slices::kNone;
    // Numbers since the last backward pass. The gradient is complete when as many backwards as forwards have
    // ended.
    int64_t forwards = 0, backwards = 0;
    bool is_to_be_handed_over = false;
  };

  void emit(Command::Action action, size_t unit);
  void expect_update(bool of_frozen);
  void gather_slices(bool records);
  void begin_pass(bool records);
  void end_pass(bool backward_follows);
  void check_order(size_t unit);
  void gather(size_t unit);
  void use(size_t unit);
  void reshard(size_t unit);
  void reshard_all(bool of_step = true);
  void gather_beside_kept(size_t unit);
  std::span<const size_t> next_in_forward();
  void gather_ahead();
  void reshard_gathered_ahead();
  void reshard_kept(size_t except);
  void gather_next_in_backward(size_t unit);
  bool ends_in_slice(const UnitState& unit) const {
    return !all_reduce_ && unit.traits.adds_before_all_reduce;
  }
  void reduce(size_t unit);
  void reduce_rest(size_t unit);
  void wait_until_sent(size_t unit);
  void wait_until_moved(size_t unit);
  void hand_over(size_t unit);
  /// Units [unit, end_of_group(unit)) are used together: all those of the root stage, or `unit` alone.
  size_t end_of_group(size_t unit) const { return unit == 0 ? root_units_ : unit + 1; }

  // From the options.
  ForwardPrefetch forward_prefetch_;
  bool limits_gathers_;
  bool guesses_;              ///< whether the likely next unit is gathered ahead
  bool gathers_beside_kept_;  ///< whether a unit is gathered on use before the unit before it is freed
  BackwardPrefetch backward_prefetch_;
  bool keeps_last_;

  CommandReader& reader_;
  std::vector<UnitState> units_;
  size_t root_units_;
  ExecutionOrder order_;
  std::vector<size_t> ahead_;  ///< units gathered ahead whose forward in this pass has not begun
  Phase phase_ = Phase::kRest;
  Pass pass_ = Pass::kForward;
  bool sync_ = true, all_reduce_ = true, records_ = false;
  int64_t backward_passes_ = 0;
  int64_t passes_of_slices_ = 0;  ///< backward_passes_ when slices were gathered last
  bool order_is_compared_ = false, changed_order_is_reported_ = false;
  std::optional<size_t> kept_;     ///< the unit whose forward ended last; freed when another's begins
  std::optional<size_t> sending_;  ///< the unit reduced last
  std::optional<size_t> moving_;   ///< the unit reduced before that
};

}  // namespace fsdp::shard
