#pragma once

// OuterOptimizer: local steps (DiLoCo, Douillard et al. 2023, arXiv 2311.08105). Replicas of a model take
// steps of their own, each with its engine, its batches and its (inner) optimizer. After a number of such
// steps they average how far they have come from the outer weights, which are the same on all of them, and an
// optimizer takes this mean, the pseudo-gradient, for a gradient of the outer weights:
//
//   delta  = outer weights - mean of the replicas' weights
//   buffer = momentum * buffer + delta
//   outer weights -= lr * (delta + momentum * buffer)        (Nesterov)
//
// The replicas go on from the outer weights; the states of their inner optimizers stay their own.
//
// The model is exchanged in fragments, sets of units, at steps of their own (outer_schedule.h). With a delay,
// an exchange runs beside the next steps, after which a replica has `mixing` of its own weights and the rest
// of the outer weights (Streaming DiLoCo, Douillard et al. 2025, arXiv 2501.18512, algorithm 2).
//
// A rank keeps outer weights and buffer for its shards of trainable units, in fp32 and where the shards are,
// and exchanges with the ranks of other replicas that have the same shards. Not thread-safe.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/api/communicator.h"
#include "state/groups/options.h"
#include "state/groups/outer_schedule.h"
#include "state/optim/optimizer.h"
#include "state/outer/exchange.h"

namespace fsdp::shard {
class Engine;
}

namespace fsdp::optim {

class OuterOptimizer {
 public:
  /// `engine` has the ranks of this replica alone, and `inner` is made from its flat_parameters(); both must
  /// outlive the object. `replicas`: the ranks with this rank's shards, one of each replica. Throws
  /// Error(kUsage) for more fragments than units.
  OuterOptimizer(const OuterOptions& options, int64_t local_steps, shard::Engine& engine,
                 const Optimizer& inner, std::shared_ptr<comm::Communicator> replicas);

  const OuterSchedule& schedule() const { return schedule_; }
  comm::Communicator& replicas() const { return *replicas_; }
  shard::Engine& engine() const { return engine_; }
  const Optimizer& inner() const { return inner_; }

  /// Takes the engine's weights as the outer weights, unless they were loaded. Called before the first step.
  void begin();
  /// Begins and ends the exchanges that are due after this step. Called after each step of the inner
  /// optimizer. `is_last`: no step follows, so everything is exchanged and replicas get the outer weights.
  /// Collective over the replicas if an exchange is due.
  void after_step(int64_t step, bool is_last);
  /// The newest step after which the result of an exchange was used.
  int64_t last_exchange() const { return last_exchange_; }
  /// Number of exchanges of the whole model up to that step. Requires: one fragment, without a delay.
  int64_t exchanges() const { return (last_exchange_ + schedule_.local_steps - 1) / schedule_.local_steps; }

  // For replicas that are lost and replaced (run/replicas).

  /// Sets a function that is called when this rank has the results of an exchange without a delay, before
  /// they are used. If it returns on any rank, all ranks have the results, and can finish() even if it throws
  /// there.
  void set_before_use(std::function<void()> hook) { before_use_ = std::move(hook); }
  bool can_finish() const { return settled_.has_value(); }
  /// Uses the results. Requires: can_finish(). Not collective.
  void finish();
  /// Lets this replica take part in the next exchange without a contribution, because it has joined just
  /// before it.
  void contribute_nothing() { contributes_ = false; }
  bool contributes() const { return contributes_; }
  /// Sets the number of replicas that contribute to the next exchange.
  void set_contributors(double number) { contributors_ = number; }

  /// Sets a function that is called before weights or states change, as by Optimizer::set_step_pre_hook().
  void set_step_pre_hook(std::function<void()> hook) { step_pre_hook_ = std::move(hook); }

  /// Whether the replica's weights may differ from the outer weights.
  bool has_local_weights() const { return has_local_weights_; }
  /// Gives the model the outer weights until the result is destroyed. Not collective; the same on every
  /// replica. Requires: an engine between steps, whose weights nobody changes meanwhile.
  std::shared_ptr<void> show_outer_weights();

  /// Throws AgreedError(kUnexpected) on all ranks of `world` if outer weights or buffers differ between
  /// replicas; the message begins with `when`. Collective over `world`, which has the ranks of all replicas.
  void require_equal(comm::Communicator& world, const std::string& when) const;

  // The state, for checkpoints (outer_slices.h): of each unit, flat like its shard; undefined if there is
  // none.

  struct UnitState {
    at::Tensor outer, buffer;
    at::Tensor delta;  ///< mean over the replicas that an exchange under way has had, or undefined
  };
  /// Waits for the exchanges under way, whose results are not used yet. Collective over the replicas.
  const std::vector<UnitState>& settled_state();
  /// The state to be overwritten by that after this step, with a delta wherever an exchange may be under way.
  const std::vector<UnitState>& state_to_load(int64_t step);
  /// The state as it is, or memory for it. Requires: no fragment has a delay.
  const std::vector<UnitState>& state_in_memory();
  /// Says which of the state was loaded, after which exchange. Without local weights the replica gets the
  /// outer weights. A unit's delta that was not loaded is dropped. `has_delta`: indexed by unit.
  void loaded(bool has_local_weights, const std::vector<bool>& has_delta, int64_t last_exchange);

  /// Bytes of this rank's outer weights and buffers, and those that it hands to the collectives of an
  /// exchange of the whole model.
  int64_t state_bytes() const;
  int64_t payload_bytes() const;

 private:
  void allocate();
  void begin_exchange(size_t fragment);
  /// Waits for the mean of a fragment.
  void settle(size_t fragment);
  /// Fragments with a result.
  struct Settled {
    std::vector<size_t> fragments;
    int64_t step = 0;
    double mixing = 0;  ///< share of the replica's own weights
  };
  void use(const Settled& settled);
  void update(UnitState& unit, const at::Tensor& weights, double mixing);

  const OuterOptions options_;
  const OuterSchedule schedule_;
  shard::Engine& engine_;
  const Optimizer& inner_;
  std::shared_ptr<comm::Communicator> replicas_;
  double contributors_;  ///< replicas that contribute to the next exchange
  bool contributes_ = true;
  std::vector<std::vector<size_t>> fragments_;  ///< units of each fragment
  std::vector<UnitState> units_;                ///< indexed by unit; without tensors if it is not trained
  std::vector<std::unique_ptr<Exchange>> exchanges_;  ///< [unit]; null: none is under way, or it is settled
  std::optional<Settled> settled_;  ///< an exchange without a delay, until its result is used
  std::function<void()> step_pre_hook_, before_use_;
  int64_t last_exchange_ = 0;
  bool has_state_ = false;  ///< whether the outer weights are known
  bool has_local_weights_ = false;
};

}  // namespace fsdp::optim
