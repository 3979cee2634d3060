#pragma once

// StepObserver: one concern that accompanies the steps of a run, such as its metrics or its saves.

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "run/train/train_step.h"

namespace fsdp::train {

struct ObservedStep {
  StepPosition position;
  StepResult result = {};
  bool ends_run =
      false;  ///< a stop was requested before training.steps: the run saves, and nothing else follows
  NamedNumbers numbers = {};  ///< numbers of observers for the next line of metrics
  bool is_best = false;       ///< the newest validation is the best of the run so far
  bool was_examined = false;  ///< a validation or a sample was made, which a launcher may not wait for
};

/// Called on every rank alike, in the order of the run's list of observers, so calls may be collective.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  /// Called before the first step of this start. `last`: the step before it.
  virtual void begin(ObservedStep& /*last*/) {}
  virtual void begin_step(const ObservedStep& /*step*/) {}
  /// Called when the step is computed.
  virtual void end_step(ObservedStep& /*step*/) {}
  /// Called between two steps and after the last one, unless the step ends the run. The time does not count
  /// as a step's.
  virtual void between_steps(ObservedStep& /*step*/) {}
  /// Called when no step follows, unless the run fails.
  virtual void finish() {}
};

using StepObservers = std::vector<std::shared_ptr<StepObserver>>;

/// An observer that calls functions, each of which may be null.
class StepCalls final : public StepObserver {
 public:
  struct Calls {
    std::function<void(int64_t step)> begin = nullptr, end = nullptr, between = nullptr;
  };
  explicit StepCalls(Calls calls) : calls_(std::move(calls)) {}

  void begin_step(const ObservedStep& step) override { call(calls_.begin, step); }
  void end_step(ObservedStep& step) override { call(calls_.end, step); }
  void between_steps(ObservedStep& step) override { call(calls_.between, step); }

 private:
  static void call(const std::function<void(int64_t)>& function, const ObservedStep& step) {
    if (function) function(step.position.step);
  }

  Calls calls_;
};

}  // namespace fsdp::train
