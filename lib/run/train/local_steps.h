#pragma once

// LocalSteps: what the replicas of a run with training.local_steps do together. After the steps of
// optim::OuterSchedule they exchange weights by the outer optimizer, and with each exchange a few numbers:
// losses, counted tokens, requests to stop and whether a replica has diverged. Between exchanges no rank
// waits for another replica, except for validations, samples and saves.

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/api/communicator.h"
#include "run/train/run_state.h"
#include "run/train/step_observer.h"
#include "run/train/training_record.h"

namespace fsdp::train {

class LocalSteps final : public StepObserver {
 public:
  /// Names of the numbers that steps with an exchange add to their line of metrics.
  static std::vector<std::string> metric_names();

  /// Requires: a run with an outer optimizer.
  explicit LocalSteps(RunState& run) : run_(run) {}

  /// Compares the replicas, and does an exchange that was broken off. Collective.
  void begin(ObservedStep& last) override;
  /// Collective after steps where an exchange begins or ends. Throws AgreedError(kDiverged) if a replica
  /// diverged before the exchange began.
  void end_step(ObservedStep& step) override;
  /// Compares the replicas at the steps of fsdp.replica_check_interval.
  void between_steps(ObservedStep& step) override;

 private:
  /// Numbers that replicas share, from the begin of an exchange to its end.
  struct Meeting {
    int64_t ends = 0;  ///< step after which the sums are used
    at::Tensor sums;   ///< double, see Place
    double own_tokens = 0;
    comm::WorkPtr work;
  };
  enum Place : int64_t { kLoss, kLosses, kTokens, kStop, kContributors, kFailed, kPlaces };

  void exchange(ObservedStep& step);
  std::string described() const;
  void meet(int64_t ends);
  void conclude(Meeting meeting, ObservedStep& step);

  RunState& run_;
  std::deque<Meeting> meetings_;
  double loss_sum_ = 0, losses_ = 0, tokens_ = 0;  ///< of this replica, since the last meeting
};

/// The outer optimizer's part of the record of a state in memory.
nlohmann::json exchange_record(const optim::OuterOptimizer& outer);
/// Sets the outer optimizer, whose state was taken from memory, to where its record says. A replica that has
/// just joined takes part in an exchange that is due now without a contribution.
void continue_exchanges(optim::OuterOptimizer& outer, const nlohmann::json& record, const RunState& run);

/// The part of training_record() that differs between replicas.
nlohmann::json replica_record(const nlohmann::json& record);
/// Adds that of the other replicas to replica 0's record. Collective over the replicas.
void add_replica_records(nlohmann::json& record, optim::OuterOptimizer& outer);
/// Returns the record with what belongs to this replica, or replica 0's if it has none. Not collective.
nlohmann::json record_of_replica(nlohmann::json record, const optim::OuterOptimizer& outer);

}  // namespace fsdp::train
