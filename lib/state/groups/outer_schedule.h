#pragma once

// OuterSchedule: the steps between which the replicas of a run with local steps exchange the fragments of the
// model. It depends on the number of the step alone, so replicas that do the same steps agree without a
// message.
//
// With 50 local steps, 2 fragments and a delay of 5, the exchange of fragment 0 begins after steps 25, 75,
// ... and its result is used after steps 30, 80, ...; that of fragment 1 begins after steps 50, 100, ... .

#include <algorithm>
#include <cstdint>

namespace fsdp::optim {

struct OuterSchedule {
  int64_t local_steps = 0;  ///< steps between two exchanges of a fragment; 0: nothing is exchanged
  int64_t fragments = 1;    ///< from 1 to local_steps
  int64_t delay = 0;        ///< steps from the begin of an exchange to its result; below local_steps

  /// Whether the exchange of a fragment begins after this step.
  bool begins(int64_t step, int64_t fragment) const {
    const int64_t first = (fragment + 1) * local_steps / fragments;
    return step >= first && (step - first) % local_steps == 0;
  }
  /// Whether the result of the exchange of a fragment is used after this step.
  bool ends(int64_t step, int64_t fragment) const { return begins(step - delay, fragment); }
  /// Whether the exchange of a fragment has begun by this step, and ends after a later one.
  bool is_under_way(int64_t step, int64_t fragment) const {
    for (int64_t begun = std::max<int64_t>(1, step - delay + 1); begun <= step; ++begun) {
      if (begins(begun, fragment)) return true;
    }
    return false;
  }
  /// Whether an exchange begins after this step.
  bool begins_any(int64_t step) const {
    for (int64_t fragment = 0; fragment < fragments; ++fragment) {
      if (begins(step, fragment)) return true;
    }
    return false;
  }
};

}  // namespace fsdp::optim
