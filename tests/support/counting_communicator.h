#pragma once

// A communicator that writes down what passes through it and its subgroups.

#include <string>
#include <vector>

#include "support/forwarding_communicator.h"

namespace fsdp::testing {

class CountingCommunicator final : public ForwardingCommunicator {
 public:
  struct Call {
    std::string op, unit, pass;
    int64_t numel;  ///< of the shard, for all-gather and reduce-scatter
    at::ScalarType dtype = at::kFloat;
    bool operator==(const Call&) const = default;
  };

  using ForwardingCommunicator::ForwardingCommunicator;

  const std::vector<Call>& calls() const { return *calls_; }
  void clear() { calls_->clear(); }
  int64_t count(const std::string& op, const std::string& pass = "") const {
    int64_t count = 0;
    for (const Call& call : *calls_) count += call.op == op && (pass.empty() || call.pass == pass);
    return count;
  }
  /// "op unit" of every call in order; of one pass, where it is given.
  std::vector<std::string> names(const std::string& pass = "") const {
    std::vector<std::string> names;
    for (const Call& call : *calls_) {
      if (pass.empty() || call.pass == pass) names.push_back(call.op + " " + call.unit);
    }
    return names;
  }
  /// Writes down something that is no collective, such as the compute of a stage.
  void mark(const std::string& what) { calls_->push_back({"compute", what, "mark", 0}); }

 protected:
  std::unique_ptr<comm::Work> collective(const comm::Collective& call, const comm::CallSite& site) override {
    if (call.kind == comm::Collective::Kind::kBarrier) {
      calls_->push_back({"barrier", site.unit, site.pass, 0});
    } else {
      const at::Tensor& payload = call.payload();
      calls_->push_back({call.name(), site.unit, site.pass, payload.numel(), payload.scalar_type()});
    }
    return call.issue(inner(), site);
  }
  std::shared_ptr<comm::Communicator> around(std::shared_ptr<comm::Communicator> group) override {
    auto counting = std::make_shared<CountingCommunicator>(std::move(group));
    counting->calls_ = calls_;
    return counting;
  }

 private:
  std::shared_ptr<std::vector<Call>> calls_ = std::make_shared<std::vector<Call>>();
};

}  // namespace fsdp::testing
