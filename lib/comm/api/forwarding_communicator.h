#pragma once

// ForwardingCommunicator: the base of every decorator. It forwards each call to the communicator that it
// holds; most decorators override only collective() and new_group(). lib/README.md draws the decorators of a
// run.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/api/communicator.h"

namespace fsdp::comm {

/// A call of one of the collectives, without its CallSite.
struct Collective {
  enum class Kind { kAllGather, kReduceScatter, kAllReduce, kBroadcast, kShift, kBarrier };

  Kind kind;
  /// The same tensor in an all-reduce and a broadcast; undefined for a barrier.
  at::Tensor output{}, input{};
  ReduceOp op = ReduceOp::kSum;  ///< used by all-reduces
  int root = 0;                  ///< used by broadcasts
  FinishSums finish{};           ///< used by reduce-scatters; may be empty
  CodingPtr coding{};            ///< used by all-gathers, reduce-scatters and sums; null: exact

  /// "all_gather" and so on.
  const char* name() const;
  /// This rank's payload: the part that it contributes to an all-gather or receives from a reduce-scatter,
  /// the whole tensor of an all-reduce or broadcast, the tensor that it sends in a shift. Undefined for a
  /// barrier.
  const at::Tensor& payload() const { return kind == Kind::kReduceScatter ? output : input; }
  /// Bytes of the payload on the links of `ranks` ranks.
  int64_t link_bytes(int ranks) const;
  /// Makes the call. The Work of a barrier is complete.
  WorkPtr issue(Communicator& communicator, const CallSite& site) const;
};

/// Handles all collectives in one function.
class UniformCommunicator : public Communicator {
 public:
  WorkPtr all_gather(const at::Tensor& output, const at::Tensor& input, const CallSite& site) override;
  WorkPtr reduce_scatter(const at::Tensor& output, const at::Tensor& input, const CallSite& site) override;
  WorkPtr reduce_scatter_and_finish(const at::Tensor& output, const at::Tensor& input, FinishSums finish,
                                    const CallSite& site) override;
  WorkPtr all_reduce(const at::Tensor& tensor, ReduceOp op, const CallSite& site) override;
  WorkPtr broadcast(const at::Tensor& tensor, int root, const CallSite& site) override;
  WorkPtr shift(const at::Tensor& output, const at::Tensor& input, const CallSite& site) override;
  void barrier(const CallSite& site) override;
  WorkPtr coded_all_gather(const at::Tensor& output, const at::Tensor& input, const CodingPtr& coding,
                           const CallSite& site) override;
  WorkPtr coded_reduce_scatter(const at::Tensor& output, const at::Tensor& input, const CodingPtr& coding,
                               const FinishSums& finish, const CallSite& site) override;
  WorkPtr coded_all_reduce(const at::Tensor& tensor, const CodingPtr& coding, const CallSite& site) override;

 protected:
  virtual WorkPtr collective(const Collective& call, const CallSite& site) = 0;
};

class ForwardingCommunicator : public UniformCommunicator, protected CommonMemory {
 public:
  explicit ForwardingCommunicator(std::shared_ptr<Communicator> inner) : inner_(std::move(inner)) {}

  int rank() const override { return inner_->rank(); }
  int world_size() const override { return inner_->world_size(); }
  std::string backend_name() const override { return inner_->backend_name(); }
  at::Device device() const override { return inner_->device(); }
  std::optional<double> waited_seconds() const override { return inner_->waited_seconds(); }
  bool adds_in_pairs() const override { return inner_->adds_in_pairs(); }
  int coded_parts() const override { return inner_->coded_parts(); }
  int64_t link_bytes_of_part(const at::Tensor& part) const override {
    return inner_->link_bytes_of_part(part);
  }
  int64_t link_bytes_of_all_reduce(const at::Tensor& tensor) const override {
    return inner_->link_bytes_of_all_reduce(tensor);
  }
  void check() const override { inner_->check(); }

  WorkPtr enqueue(std::function<void()> task) override { return inner_->enqueue(std::move(task)); }
  WorkPtr enqueue_release(std::function<void()> task) override {
    return inner_->enqueue_release(std::move(task));
  }
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override { return inner_->allocate(numel, dtype); }
  at::Tensor allocate_on_host(int64_t numel, at::ScalarType dtype) override {
    return inner_->allocate_on_host(numel, dtype);
  }
  CommonMemory* common_memory() override { return inner_->common_memory() == nullptr ? nullptr : this; }
  std::shared_ptr<Communicator> host_group(const std::string& name, const std::vector<int>& ranks) override {
    return device().is_cpu() ? subgroup(name, ranks) : inner_->host_group(name, ranks);
  }
  /// The same decorator around inner().new_group().
  std::shared_ptr<Communicator> new_group(const std::string& name,
                                          const std::vector<int>& ranks) override = 0;

 protected:
  Communicator& inner() const { return *inner_; }
  const std::shared_ptr<Communicator>& shared_inner() const { return inner_; }

  WorkPtr collective(const Collective& call, const CallSite& site) override {
    return call.issue(*inner_, site);
  }

  // CommonMemory
  WorkPtr enqueue_with_memory(int64_t nbytes, const CallSite& site,
                              std::function<void(c10::DataPtr)> task) override {
    return inner_->common_memory()->enqueue_with_memory(nbytes, site, std::move(task));
  }
  void reserve(int64_t nbytes) override { inner_->common_memory()->reserve(nbytes); }

 private:
  std::shared_ptr<Communicator> inner_;
};

}  // namespace fsdp::comm
