#pragma once

// FakeCommunicator: what PyTorch calls a fake process group. It is rank 0 of a world whose other ranks do not
// exist, so that one process can run, and measure, what a rank of a world of any size does. Nothing is sent.
//
//   all_gather      copies this rank's part to its place and sets the other parts to zero
//   reduce_scatter  copies this rank's part of its own input, without a sum
//   shift           copies the input, as if all ranks sent the same
//   others          leave the tensor unchanged
//
// The results are meaningless but finite, whatever the buffers held before. One thread issues operations. Any
// thread may wait for a Work, and then runs the operations that are due unless another thread does.
//

#include <functional>
#include <memory>

#include "comm/api/forwarding_communicator.h"

namespace fsdp::comm {

/// When a collective or an enqueued task runs: the two extremes of a network's behaviour. Calls of progress()
/// during compute turn kWhenWaitedFor into anything between the two.
enum class FakeTiming {
  kAtOnce,         ///< at the call
  kWhenWaitedFor,  ///< when it or a later operation is waited for, in the order of issue
};

class FakeCommunicator final : public UniformCommunicator {
 public:
  explicit FakeCommunicator(int world_size, FakeTiming timing = FakeTiming::kAtOnce);

  /// Sets the timing of later operations; runs the pending ones first.
  void set_timing(FakeTiming timing);
  /// Runs the pending operations.
  void progress();

  int rank() const override { return 0; }
  int world_size() const override { return world_size_; }
  std::string backend_name() const override { return "fake"; }
  WorkPtr enqueue(std::function<void()> task) override;
  /// Returns memory that is zero.
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override;
  /// A group of fewer ranks shares this communicator's order. All groups share its timing.
  std::shared_ptr<Communicator> new_group(const std::string& name, const std::vector<int>& ranks) override;

 protected:
  WorkPtr collective(const Collective& call, const CallSite& site) override;

 private:
  class Queue;
  FakeCommunicator(int world_size, std::shared_ptr<Queue> queue);
  class QueuedWork;
  WorkPtr issue(std::function<void()> task);

  int world_size_;
  std::shared_ptr<Queue> queue_;  ///< shared with the Works, which may live longer, and with subgroups
};

/// A FakeCommunicator for tensors of `device`. On a GPU, buffers are allocated there, and the copies run in a
/// stream beside the caller's, as NCCL's collectives would; they are launched at the call, so the timing is
/// always kAtOnce.
std::shared_ptr<Communicator> make_fake_communicator(int world_size, at::Device device);

}  // namespace fsdp::comm
