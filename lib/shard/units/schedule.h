#pragma once

// Schedule: the order of a step, decided here alone. It takes events (the forward or backward of a unit's
// stage begins or ends) and issues commands (gather, wait, attach gradients, reduce, reshard). It holds no
// tensors, and allocates nothing once a pass has shown how often units are used, so all that depends on the
// order of a step runs a schedule and reads its commands:
//
//   Engine              executes them on shards and buffers (shard/engine/engine.h)
//   step_formula()      counts them, and the bytes held at once (shard/units/step_formula.h)
//   plan::UnitMemory    adds up memory beside activations (tools/plan/unit_memory.h)
//   plan::StepClock     adds up seconds (tools/plan/time.h)
//   simulate            writes them into the program that it simulates (tools/simulate/step_program.h)
//   schedule_text()     prints them (shard/units/schedule_text.h); lib/shard/README.md shows such a text
//
// The rules, with the ShardOptions that change them:
// - A unit is gathered when its forward begins, if it is not gathered yet, and the next unit is gathered
//   before it computes [forward_prefetch]. The unit whose forward ended before is freed first, so two units
//   are gathered at a time [reshard_after_forward, keep_after_forward, strategy; all three for each unit:
//   shard/units/unit_options.h]. Without limit_all_gathers, all units that are known to come are gathered ahead.
// - With hybrid_optimizer = "global", the gathers between slices are issued all together, in the order of the
//   units, when the first forward after an update begins: their memory is there all the time, and the slow
//   network is busy beside the compute of that forward from its beginning. A gather within the slice waits for
//   its unit's. Updated may be the weights of units with trainable parameters, when the gradients are dropped
//   (forget_gradients()), and after a backward pass, before a forward that autograd does not record; further
//   forwards of a step, of other micro-batches, use what is there.
// - ForwardPrefetch::kImplicit needs no recorded order. Ahead is gathered what came next in the previous
//   forward, as long as this forward agrees with it. Elsewhere (in the first forward, after a change of order)
//   it depends on whether the host runs ahead of the compute:
//   - On a device it does: the unit is gathered when its forward begins, before the one before is freed, and
//     the gather runs beside the compute of that one.
//   - On the CPU it does not: ahead is gathered the likely next unit, the one that followed this unit when it
//     was last used, or if it never was, the next in the order of the units. After a unit that was not the
//     likely one, none is.
// - kExplicit gathers what the previous forward recorded, as long as this forward agrees with it. All ranks
//   compare the order of units in the first forward, and a later forward in another order is reported.
// - A unit that was gathered ahead and is not used next stays gathered until another needs its place, or
//   forward ends. It costs one all-gather and never the memory of a third unit.
// - The unit whose forward ends last stays gathered, because backward begins with it
//   [reshard_last_after_forward]; the root stays from its forward to the end of backward
//   [reshard_root_after_forward].
// - Backward gathers in reverse order. The next all-gather is issued before the current unit's gradients are
//   attached and computed [BackwardPrefetch::kPre], after their reduction has been issued [kPost], or when
//   the next unit's backward begins [kNone].
// - When a unit's backward has ended, it is freed, and its gradients are reduced during the backward of the
//   next unit. A reduction is issued only after the gradient buffer of the previous one has been given back.
//   The reduction over replicas or slices [strategy = "hybrid_shard", hybrid_optimizer] and the copy of a
//   shard's gradient to host memory [move_grads_to_cpu] may continue after that; at most two such copies are
//   under way. A reduction over slices has an input beside its result, so at most two of these are under way too.
// - A unit whose backward cannot be seen to end (no input of its stage requires a gradient: the root,
//   embeddings) is reduced and freed when the whole backward pass has ended.
// - In a model with adapters [trained_apart], a frozen unit that stays gathered from forward to backward stays so for all
//   micro-batches of a step, until the gradients are dropped or the weights may have changed.
// - A unit whose output requires no gradient (frozen embeddings) has no backward.
// - Without gradient sync nothing is reduced [training.no_sync]; the gradient buffers stay for the next pass.
// - Without the all-reduce over replicas, which only the last micro-batch of a step needs, a reduction ends within
//   the slice, and the rank adds up its results until one with the all-reduce takes them [not move_grads_to_cpu,
//   with which they would be on the host, nor between slices, whose sums would be larger than the shard].
// - A forward that runs within backward (activation checkpointing) gathers its units for the backward that
//   follows and leaves them gathered.
//
// Ranks must use the same units in the same order, as in any FSDP: each unit that a rank gathers, ahead or
// not, all ranks gather at that place. Only kExplicit turns a difference into an error that names the units.
//
// Units are numbered in the order of Engine::units(), those of the root stage first. Single-threaded. Needs
// no libtorch.

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
    kGatherSlices,      ///< issue the all-gather between slices of what a slice gathers
    kWaitForSlices,     ///< until that is there, of a unit that this forward has not used
    kGather,            ///< issue the all-gather of the unit's parameters
    kWaitForGather,     ///< afterwards the unsharded parameters may be used
    kReshard,           ///< free the unsharded parameters
    kAttachGradients,   ///< give autograd a zeroed buffer in which to accumulate the unit's gradients
    kReduce,            ///< issue the reduction of that buffer, and of what is left in slices, over the ranks
    kReduceInSlice,     ///< issue it over the ranks that share the unit, not over replicas
    kWaitForSending,    ///< until that buffer has been given back; later parts of the reduction may continue
    kWaitForMove,       ///< until the second collective over slices, and the copy to host memory, have ended
    kWaitForReduction,  ///< until the mean over the ranks is in the shard's gradient
    kHandOver,          ///< the reductions issued so far complete the shard's gradient
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

  // For "explicit" forward prefetch. `unit` is about to be used; the number of units stands for the end of
  // forward.

  /// All ranks must compare the unit.
  virtual void compare_order(size_t /*unit*/) {}
  /// The unit is used in place of Schedule::expected_unit().
  virtual void report_changed_order(size_t /*unit*/) {}

 protected:
  ~CommandReader() = default;
};

/// The properties of a unit on which the order depends.
struct ScheduledUnit {
  std::string name;
  bool is_root = false;                 ///< a unit of the root stage
  bool is_cut = true;                   ///< its parameters are sharded over several ranks
  bool is_reduced_twice = false;        ///< a second collective, over replicas or slices, follows the first
  bool adds_before_all_reduce = false;  ///< see the function in shard/units/unit_sizes.h
  bool has_slices = false;              ///< the shards of slices are parts of each other's: see kGatherSlices
  bool stays_after_forward = false;     ///< see UnitOptions
  bool stays_in_step = false;           ///< is frozen, and stays gathered between the passes of a step
  bool has_trainable_parameters = true;
  bool gradient_moves = false;  ///< its gradient is copied from the device to host memory
};

class Schedule {
 public:
  /// `units`: those of the root stage first. `reader` is not called before the first event.
  /// `host_runs_ahead`: events are those of a host that launches the compute on a device. It changes nothing
  /// in a pass that follows the previous one.
  Schedule(const ShardOptions& options, std::vector<ScheduledUnit> units, CommandReader& reader,
           bool host_runs_ahead = false);

  // ---- events of a unit's stage; unit 0 stands for all units of the root stage

  /// `records`: whether autograd records this pass; ignored for units other than 0.
  void forward_begins(size_t unit, bool records = true);
  /// `backward_follows`: the output requires a gradient, or this forward will run again in backward.
  void forward_ends(size_t unit, bool backward_follows = true);
  void backward_begins(size_t unit);
  /// Only for units with an input that requires a gradient.
  void backward_ends(size_t unit);
  /// All gradients of the pass have been computed.
  void whole_backward_ends();

  // ---- between passes

  /// Whether backward passes from now on reduce gradients.
  void set_requires_gradient_sync(bool sync) { sync_ = sync; }
  bool requires_gradient_sync() const { return sync_; }
  /// Whether reductions from now on include the all-reduce over replicas, where it can wait.
  void set_requires_all_reduce(bool all_reduce) { all_reduce_ = all_reduce; }
  /// Whether a backward pass without either has left gradients unreduced.
  bool has_unreduced_gradients() const;
  /// The gradients have been dropped: a step has ended, or begins.
  void forget_gradients();
  /// All weights may have changed, those of frozen parameters too.
  void weights_changed();
  /// After a failed pass: every unit is sharded and without gradients again.
  void reset();

  // ---- the state of the step

  /// How many backward passes have ended or been abandoned.
  int64_t backward_passes() const { return backward_passes_; }
  /// How many of the first units belong to the root stage.
  size_t root_units() const { return root_units_; }
  bool in_backward() const { return phase_ == Phase::kBackward; }
  bool in_pass() const { return phase_ == Phase::kForward || in_backward(); }
  /// Whether a recorded forward has ended whose backward has not begun.
  bool backward_is_due() const { return phase_ == Phase::kBackwardIsDue; }
  /// Whether a unit is gathered, other than those that stay so between the passes of a step.
  bool any_is_gathered() const;
  /// Between passes: frees the units that stay gathered for all of a step.
  void reshard_frozen();
  /// Whether autograd records the current forward, also inside parts where recomputation has switched that
  /// off.
  bool records() const { return records_; }
  /// The next unit if the current forward follows the previous one; nullopt: its end.
  std::optional<size_t> expected_unit() const { return order_.expected(); }
  /// How many forwards of units have begun in this pass.
  size_t position() const { return order_.position(); }

 private:
  enum class Phase { kRest, kForward, kBackwardIsDue, kBackward };
  enum class Parameters { kSharded, kGathering, kUnsharded };

  struct UnitState {
    ScheduledUnit traits;
    Parameters parameters = Parameters::kSharded;
    bool has_gradients = false;        ///< attached and not reduced
    bool is_reduced_in_slice = false;  ///< and not over replicas
    bool is_being_reduced = false;
    enum class Slices { kNone, kOld, kGathering, kThere } slices = Slices::kNone;
    // Since the last backward pass. The gradient is complete when as many backwards as forwards have ended.
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
  bool guesses_;              ///< gathers ahead what is likely
  bool gathers_beside_kept_;  ///< gathers a unit on use before the one before is freed
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
