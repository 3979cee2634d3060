#pragma once

// Deliberate faults, to test how a run, its supervision and its restarts cope with them.
//
//   FSDP_INJECT_FAULT="rank=1,step=3,at=forward,do=kill" fsdp-launch ...
//
//   rank  the faulty process
//   step  the step in which the fault happens: S, or FIRST-LAST for each of these steps, for instance to make
//         a rank slow by sleep
//   at    step (before it begins), forward, collective (on the communication stream, beside forward), save
//         (before it begins), copy (before an asynchronous save copies the state beside the next step), write
//         (the checkpoint's file is half written), validation (after it, before rank 0 writes its line),
//         transfer (this rank is about to send or receive the state after that step for a replica that joins)
//   do    kill (SIGKILL), stop (SIGSTOP), exit:CODE, sleep:SECONDS, throw
//
// Several faults are separated by ";"; faults at one place happen in that order. No fault happens after a
// restart by a launcher (TORCHELASTIC_RESTART_COUNT above 0).

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/api/communicator.h"
#include "model/nn/stage.h"

namespace fsdp::train {

enum class FaultPlace { kStep, kForward, kCollective, kSave, kCopy, kWrite, kValidation, kTransfer };

class FaultInjection {
 public:
  /// Injects nothing.
  FaultInjection() = default;
  /// Returns the faults of FSDP_INJECT_FAULT for this rank. Throws Error(kUsage) for a value of another form.
  static FaultInjection from_environment(int rank);

  /// Whether at(place, step) injects the fault.
  bool is_due(FaultPlace place, int64_t step) const;
  /// Injects the faults that are due here. Does not return from most of them.
  void at(FaultPlace place, int64_t step) const;

  /// Injects kForward and kCollective in the forward of `model`, in the step after `steps_done`. The object
  /// and all arguments must outlive the model's use.
  void attach_to(nn::Stage& model, comm::Communicator& communicator, const int64_t& steps_done) const;

 private:
  struct Fault {
    FaultPlace place = FaultPlace::kStep;
    int64_t first_step = 0, last_step = 0;
    std::string action;
    double argument = 0;

    bool is_due(FaultPlace at, int64_t step) const {
      return place == at && first_step <= step && step <= last_step;
    }
  };
  static std::optional<Fault> parsed(const std::string& text, int rank);

  std::vector<Fault> faults_;
};

}  // namespace fsdp::train
