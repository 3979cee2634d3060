#pragma once

// Exchange: the mean of numbers over the replicas, computed beside the caller's work.
//
// The sum is an all-reduce in fp32, in bf16, or coded in 8 or 4 bits on its links (comm/codes/link_codes.h),
// with stochastic rounding. All replicas get the same bits.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/api/communicator.h"
#include "state/groups/options.h"

namespace fsdp::optim {

class Exchange {
 public:
  /// Numbers of one collective, so that each is far from the time-out of collectives over a slow network.
  static constexpr int64_t kPiece = int64_t{1} << 22;

  /// Begins to average `numbers`, [n] fp32 and contiguous, which belong to the exchange until it is
  /// destroyed. `seed`: of stochastic rounding, the same on all replicas. Collective.
  Exchange(at::Tensor numbers, util::Named<ExchangeType> type, std::shared_ptr<comm::Communicator> replicas,
           uint64_t seed, const comm::CallSite& site);
  /// Waits for the collectives, and ignores their errors.
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// Waits for the result. Throws the errors of the collectives.
  void wait();
  /// Returns the sum over the replicas, divided by the number of those that have contributed. Requires:
  /// wait().
  at::Tensor mean(double contributors);

  /// Payload of the all-reduces of n numbers.
  static int64_t payload_bytes(int64_t n, util::Named<ExchangeType> type, int64_t replicas);

 private:
  at::Tensor numbers_;
  at::Tensor sent_;  ///< the numbers in bf16, or themselves
  std::vector<comm::WorkPtr> works_;
};

}  // namespace fsdp::optim
