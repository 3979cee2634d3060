#pragma once

#include <ATen/ops/empty.h>

#include <cstdint>
#include <functional>

#include "base/util/error.h"
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
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    return at::empty({numel}, at::TensorOptions().dtype(dtype).device(at::kMeta));
  }
  std::shared_ptr<comm::Communicator> new_group(const std::string& name, const std::vector<int>&) override {
    fail(ErrorKind::kUnexpected, "no group ", name, " of meta tensors");
  }

 protected:
  comm::WorkPtr collective(const comm::Collective& call, const comm::CallSite&) override {
    const auto payload = static_cast<int64_t>(call.payload().nbytes());
    const int64_t times = call.kind == comm::Collective::Kind::kShift ? 1 : world_size_ - 1;
    return std::make_unique<MetaWork>(events_.waits, events_.sends(payload * times));
  }

 private:
  class MetaWork final : public comm::Work {
   public:
    MetaWork(std::function<void(int64_t)> waits, int64_t number)
        : waits_(std::move(waits)), number_(number) {}
    void wait() override { waits_(number_); }

   private:
    std::function<void(int64_t)> waits_;
    int64_t number_;
  };

  int world_size_;
  Events events_;
};

}  // namespace fsdp::plan
