#pragma once

// Faults on purpose: to see how a run, its supervision and its restarts behave before a real one happens.
//
//   FSDP_INJECT_FAULT="rank=1,step=3,at=forward,do=kill" fsdp-launch ...
//
//   rank  whom it hits                 step  the step in which it happens
//   at    step (before it begins), forward, collective (the communication stream, beside forward), save
//         (before it begins), write (of the checkpoint: the file is half written)
//   do    kill (SIGKILL), stop (SIGSTOP), exit:CODE, sleep:SECONDS, throw
//
// It happens once: not again after a restart by a launcher (TORCHELASTIC_RESTART_COUNT above 0).

#include <cstdint>
#include <optional>
#include <string>

#include "comm/communicator.h"
#include "nn/stage.h"

namespace fsdp::train {

enum class FaultPlace { kStep, kForward, kCollective, kSave, kWrite };

class FaultInjection {
 public:
  /// None is ever injected.
  FaultInjection() = default;
  /// From FSDP_INJECT_FAULT for this rank. Throws Error(kUsage) for a text of another form.
  static FaultInjection from_environment(int rank);

  /// Whether at(place, step) would do something.
  bool is_due(FaultPlace place, int64_t step) const;
  /// Does what is due here; most faults do not return.
  void at(FaultPlace place, int64_t step) const;

  /// Makes the forward of `model` a place for faults of the step after `steps_done`. The object and all
  /// arguments must outlive the model's use.
  void attach_to(nn::Stage& model, comm::Communicator& communicator, const int64_t& steps_done) const;

 private:
  struct Fault {
    FaultPlace place = FaultPlace::kStep;
    int64_t step = 0;
    std::string action;
    double argument = 0;
  };
  std::optional<Fault> fault_;
};

}  // namespace fsdp::train
