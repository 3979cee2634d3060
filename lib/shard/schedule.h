#pragma once

// Schedule: the order of a step, and the only place that decides it. What a unit's stage reports (its forward
// and backward begin and end) goes in; what is to be done for which unit comes out, as commands: gather, wait,
// attach gradients, reduce, free. The schedule holds no tensor and allocates nothing once a pass has shown how
// often units are used, so whoever needs the order of a step runs the schedule and reads the commands:
//
//   Engine              executes them on the shards and buffers of units (shard/engine.h)
//   step_formula()      counts them, and the bytes that they hold at once (shard/step_formula.h)
//   plan::UnitMemory    adds up memory beside activations (plan/unit_memory.h)
//   plan::StepClock     adds up seconds (plan/step_clock.h)
//   schedule_text()     prints them (shard/schedule_text.h); lib/README.md shows such a text
//
// The rules, each with the option of ShardOptions that changes it:
//
//   A unit is gathered when its forward begins, and the next one beside its compute [forward_prefetch,
//   limit_all_gathers]. The unit whose forward ended before is freed first, so two are gathered at a time
//   [reshard_after_forward, keep_after_forward, strategy].
//   The unit that ends forward last stays, because backward begins with it [reshard_last_after_forward]; the
//   root stays from its forward to the end of backward [reshard_root_after_forward].
//   Backward gathers in reverse order. The next gather is issued before the gradients of this unit are
//   attached and computed [BackwardPrefetch::kPre], after they have been sent to their reduction [kPost],
//   or when the next unit's backward begins ["none"].
//   When a unit's backward has ended, it is freed and its gradients are reduced, beside the backward of the
//   next unit: before the next reduction is issued, the buffer of this one's gradients has been given back.
//   The all-reduce over replicas [strategy = "hybrid_shard"] and the copy of a shard's gradient to host memory
//   [move_grads_to_cpu] may go on behind it; of such copies at most two are under way.
//   A unit whose backward cannot be seen to end (no input of its stage requires a gradient: the root,
//   embeddings) is reduced and freed when the whole backward pass has ended.
//   Without gradient sync nothing is reduced [training.no_sync]; the buffers stay for the next pass.
//   A forward that runs within backward (activation checkpointing) gathers its units for the backward that
//   follows, and leaves them gathered.
//   Under "explicit" forward prefetch, all ranks compare the order of units in the first forward, and a later
//   forward with another order is reported.
//
// Units are numbered: first those of the root stage, then in the order of Engine::units(). One thread.
// Needs no libtorch.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shard/execution_order.h"
#include "shard/options.h"

namespace fsdp::shard {

enum class Pass { kForward, kBackward };

struct Command {
  enum class Kind {
    kGather,            ///< issue the all-gather of the unit's parameters
    kWaitForGather,     ///< from here on the unsharded parameters may be used
    kReshard,           ///< give back the unsharded parameters
    kAttachGradients,   ///< from here on autograd accumulates into a zeroed buffer of the unit
    kReduce,            ///< issue the reduction of that buffer over the ranks
    kWaitForSending,    ///< until that buffer has been given back; what follows the reduction may go on
    kWaitForMove,       ///< until the shard's gradient has left for host memory
    kWaitForReduction,  ///< until the mean over the ranks is in the shard's gradient
    kHandOver,          ///< the shard's gradient is complete once the reductions issued so far are
  };
  Kind kind;
  size_t unit;
  Pass pass;

  bool operator==(const Command&) const = default;
};

/// Executes commands, each before Schedule goes on. What it throws leaves the schedule in the pass, to be
/// ended by Schedule::reset().
class CommandReader {
 public:
  virtual void read(const Command& command) = 0;

  // Of "explicit" forward prefetch. `unit` is about to be used; the number of units stands for the end of the
  // forward.

  /// All ranks are to compare it.
  virtual void compare_order(size_t /*unit*/) {}
  /// It comes in place of Schedule::expected_unit().
  virtual void report_changed_order(size_t /*unit*/) {}

 protected:
  ~CommandReader() = default;
};

/// What the order depends on, of one unit.
struct ScheduledUnit {
  std::string name;
  bool is_root = false;       ///< a unit of the root stage
  bool is_cut = true;         ///< its parameters are sharded over several ranks
  bool has_replicas = false;  ///< its gradients are all-reduced over replicas
  bool has_trainable_parameters = true;
  bool gradient_moves = false;  ///< its gradient is copied from the device to host memory
};

class Schedule {
 public:
  /// `units`: those of the root stage first. `reader` is not used before the first event.
  Schedule(const ShardOptions& options, std::vector<ScheduledUnit> units, CommandReader& reader);

  // ---- events, of the stage of a unit; 0 stands for all units of the root stage

  /// `records`, of unit 0: whether autograd records this pass.
  void forward_begins(size_t unit, bool records = true);
  /// `backward_follows`: the output requires a gradient, or this forward will be run again in backward.
  void forward_ends(size_t unit, bool backward_follows = true);
  void backward_begins(size_t unit);
  /// Of units whose stage has an input that requires a gradient.
  void backward_ends(size_t unit);
  /// All gradients of the pass have been computed.
  void whole_backward_ends();

  // ---- between passes

  /// Whether following backward passes reduce gradients.
  void set_requires_gradient_sync(bool sync) { sync_ = sync; }
  bool requires_gradient_sync() const { return sync_; }
  /// Whether gradients of a backward pass without sync wait to be reduced.
  bool has_unreduced_gradients() const;
  /// The gradients have been dropped.
  void forget_gradients();
  /// A pass has failed: every unit is sharded and without gradients again.
  void reset();

  // ---- where the step is

  /// How many backward passes have ended or been given up.
  int64_t backward_passes() const { return backward_passes_; }
  /// How many of the first units belong to the root stage.
  size_t root_units() const { return root_units_; }
  bool in_backward() const { return phase_ == Phase::kBackward; }
  /// A recorded forward has ended whose backward has not begun.
  bool backward_is_due() const { return phase_ == Phase::kBackwardIsDue; }
  bool any_is_gathered() const;
  /// Whether autograd records the forward under way, wherever recomputation has switched that off.
  bool records() const { return records_; }
  /// With which unit the forward under way would go on as the last one did; none: it would end.
  std::optional<size_t> expected_unit() const { return order_.expected(); }
  /// How many forwards of units the pass has begun.
  size_t position() const { return order_.position(); }

 private:
  enum class Phase { kRest, kForward, kBackwardIsDue, kBackward };
  enum class Parameters { kSharded, kGathering, kUnsharded };

  struct Unit {
    ScheduledUnit traits;
    bool stays_after_forward = false;
    Parameters parameters = Parameters::kSharded;
    bool gathered_ahead = false;  ///< of its forward in this pass, which has not begun
    bool has_gradients = false;   ///< attached and not reduced
    bool is_being_reduced = false;
    // Since the last backward pass; a gradient is complete when as many backwards as forwards have ended.
    int64_t forwards = 0, backwards = 0;
    bool is_to_be_handed_over = false;
  };

  void emit(Command::Kind kind, size_t unit);
  void begin_pass(bool records);
  void end_pass(bool backward_follows);
  void check_order(size_t unit);
  void gather(size_t unit);
  void use(size_t unit);
  void reshard(size_t unit);
  void reshard_all();
  void gather_ahead();
  void reshard_gathered_ahead();
  void reshard_kept(size_t except);
  void gather_next_in_backward(size_t unit);
  void reduce(size_t unit);
  void wait_until_sent(size_t unit);
  void wait_until_moved(size_t unit);
  void hand_over(size_t unit);
  /// The units that live as this one does: those of the root stage, or itself.
  size_t end_of_group(size_t unit) const { return unit == 0 ? root_units_ : unit + 1; }
  /// Whether more follows than the collective that takes the buffer of the whole unit's gradients.
  static bool goes_on_after_sending(const ScheduledUnit& unit);

  // Of the options.
  bool compares_order_, gathers_ahead_;
  size_t most_ahead_;
  BackwardPrefetch backward_prefetch_;
  bool keeps_last_;

  CommandReader& reader_;
  std::vector<Unit> units_;
  size_t root_units_ = 0;
  ExecutionOrder order_;
  Phase phase_ = Phase::kRest;
  Pass pass_ = Pass::kForward;
  bool sync_ = true, records_ = false;
  int64_t backward_passes_ = 0;
  bool order_is_compared_ = false, changed_order_is_reported_ = false;
  std::optional<size_t> kept_;     ///< its forward ended last; freed when another unit's begins
  std::optional<size_t> sending_;  ///< reduced last
  std::optional<size_t> moving_;   ///< the one before it
};

}  // namespace fsdp::shard
