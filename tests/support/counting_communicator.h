#pragma once

// A communicator that writes down what passes through it.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace fsdp::testing {

class CountingCommunicator final : public comm::Communicator {
 public:
  struct Call {
    std::string op, unit, pass;
    int64_t numel;  ///< of the shard, for all-gather and reduce-scatter
    bool operator==(const Call&) const = default;
  };

  explicit CountingCommunicator(comm::Communicator& inner) : inner_(inner) {}

  const std::vector<Call>& calls() const { return calls_; }
  void clear() { calls_.clear(); }
  int64_t count(const std::string& op, const std::string& pass = "") const {
    int64_t count = 0;
    for (const Call& call : calls_) count += call.op == op && (pass.empty() || call.pass == pass);
    return count;
  }

  int rank() const override { return inner_.rank(); }
  int world_size() const override { return inner_.world_size(); }
  std::string backend_name() const override { return inner_.backend_name(); }
  std::unique_ptr<comm::Work> all_gather(const at::Tensor& output, const at::Tensor& input,
                                         const comm::CallSite& site) override {
    note("all_gather", site, input.numel());
    return inner_.all_gather(output, input, site);
  }
  std::unique_ptr<comm::Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                             const comm::CallSite& site) override {
    note("reduce_scatter", site, output.numel());
    return inner_.reduce_scatter(output, input, site);
  }
  std::unique_ptr<comm::Work> all_reduce(const at::Tensor& tensor, comm::ReduceOp op,
                                         const comm::CallSite& site) override {
    note("all_reduce", site, tensor.numel());
    return inner_.all_reduce(tensor, op, site);
  }
  std::unique_ptr<comm::Work> broadcast(const at::Tensor& tensor, int root,
                                        const comm::CallSite& site) override {
    note("broadcast", site, tensor.numel());
    return inner_.broadcast(tensor, root, site);
  }
  void barrier(const comm::CallSite& site) override {
    note("barrier", site, 0);
    inner_.barrier(site);
  }
  std::unique_ptr<comm::Work> enqueue(std::function<void()> task) override {
    return inner_.enqueue(std::move(task));
  }
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override { return inner_.allocate(numel, dtype); }

 private:
  void note(const char* op, const comm::CallSite& site, int64_t numel) {
    calls_.push_back({op, site.unit, site.pass, numel});
  }

  comm::Communicator& inner_;
  std::vector<Call> calls_;
};

}  // namespace fsdp::testing
