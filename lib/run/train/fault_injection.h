#pragma once

// Deliberate faults, to test how a run, its supervision and its restarts cope with them.
//
//   FSDP_INJECT_FAULT="rank=1,step=3,at=forward,do=kill" fsdp-launch ...
//
//   rank  of the faulty process        step  in which the fault happens: S, or FIRST-LAST for each of these steps,
//                                            as for sleep in a rank that is to be slow
//   at    step (before it begins), forward, collective (the communication stream, beside forward), save
//         (before it begins), write (of the checkpoint: the file is half written), validation (after it, before
//         rank 0 writes its line), transfer (of the state after that step to a replica that joins: this rank is
//         about to send or receive)
//   do    kill (SIGKILL), stop (SIGSTOP), exit:CODE, sleep:SECONDS, throw
//
// Several faults are separated by ";"; those at one place happen in that order. Not after a restart by a launcher
// (TORCHELASTIC_RESTART_COUNT above 0).

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/api/communicator.h"
#include "model/nn/stage.h"

namespace fsdp::train {

enum class FaultPlace { kStep, kForward, kCollective, kSave, kWrite, kValidation, kTransfer };

class FaultInjection {
 public:
  /// Injects nothing.
  FaultInjection() = default;
  /// The faults of FSDP_INJECT_FAULT that are for this rank. Throws Error(kUsage) for a value of another
  /// form.
  static FaultInjection from_environment(int rank);

  /// Whether at(place, step) injects the fault.
  bool is_due(FaultPlace place, int64_t step) const;
  /// Injects the faults that are due here; most do not return.
  void at(FaultPlace place, int64_t step) const;

  /// Makes kForward and kCollective happen in the forward of `model`, in the step after `steps_done`. The
  /// object and all arguments must outlive the model's use.
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
