#pragma once

#include <cstdint>
#include <functional>

#include "comm/api/forwarding_communicator.h"

namespace fsdp::plan {

/// The first of some ranks, whose collectives of meta tensors are reported and move nothing.
class MetaGroup final : public comm::UniformCommunicator {
 public:
  struct Events {
    /// The bytes that a rank receives in a collective; returns the collective's number.
    std::function<int64_t(int64_t bytes)> sends;
    std::function<void(int64_t number)> waits;
  };
  MetaGroup(int world_size, Events events) : world_size_(world_size), events_(std::move(events)) {}

  int rank() const override { return 0; }
  int world_size() const override { return world_size_; }
  std::string backend_name() const override { return "meta"; }
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override;
  std::shared_ptr<comm::Communicator> new_group(const std::string& name,
                                                const std::vector<int>& ranks) override;

 protected:
  std::unique_ptr<comm::Work> collective(const comm::Collective& call, const comm::CallSite& site) override;

 private:
  int world_size_;
  Events events_;
};

}  // namespace fsdp::plan
