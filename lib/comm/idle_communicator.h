#pragma once

// IdleCommunicator: rank 0 of a world whose other ranks are not there, so that one process can run what a
// rank of any world runs, and measure it. Nothing is sent and nothing is waited for.
//
//   all_gather      this rank's part is put in its place; those of the others are zero
//   reduce_scatter  gives this rank's part of its own input, without a sum
//   the others      leave the tensor as it is
//
// So numbers mean nothing but stay finite, whatever memory the buffers had before.
//
// One thread issues; any may wait for a Work, and runs what is to be done, with its failure, if no other
// does.

#include <functional>
#include <memory>

#include "comm/communicator.h"

namespace fsdp::comm {

/// When a collective or an enqueued task is done: the two ends of what a network may do. With progress()
/// called from within compute, kWhenWaitedFor is also what lies between.
enum class IdleTiming {
  kAtOnce,         ///< at the call
  kWhenWaitedFor,  ///< with all that was issued before it, when somebody waits for it or for a later one
};

class IdleCommunicator final : public Communicator {
 public:
  explicit IdleCommunicator(int world_size, IdleTiming timing = IdleTiming::kAtOnce);

  /// From the next call on; what waits to be done is done first.
  void set_timing(IdleTiming timing);
  /// Does what waits to be done.
  void progress();

  int rank() const override { return 0; }
  int world_size() const override { return world_size_; }
  std::string backend_name() const override { return "nothing"; }
  std::unique_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input,
                                   const CallSite& site) override;
  std::unique_ptr<Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                       const CallSite& site) override;
  std::unique_ptr<Work> all_reduce(const at::Tensor& tensor, ReduceOp op, const CallSite& site) override;
  std::unique_ptr<Work> broadcast(const at::Tensor& tensor, int root, const CallSite& site) override;
  void barrier(const CallSite& site) override;
  std::unique_ptr<Work> enqueue(std::function<void()> task) override;
  /// Zero at first.
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override;
  /// Shares the order and the timing of this one.
  std::shared_ptr<Communicator> subgroup(const std::string& name, const std::vector<int>& ranks) override;

 private:
  class Queue;
  IdleCommunicator(int world_size, std::shared_ptr<Queue> queue);
  class QueuedWork;
  std::unique_ptr<Work> issue(std::function<void()> task);

  int world_size_;
  std::shared_ptr<Queue> queue_;  ///< shared with the Works, which may live longer, and with subgroups
};

/// One for the tensors of `device`. On another device than the CPU, buffers lie there and what is gathered
/// and reduced is copied in a stream of the device beside the caller's, where NCCL's collectives would run;
/// it is launched at the call, so nothing can be late.
std::shared_ptr<Communicator> make_idle_communicator(int world_size, at::Device device);

}  // namespace fsdp::comm
