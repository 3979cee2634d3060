#pragma once

#include <memory>
#include <utility>

#include "base/tensor/stream.h"
#include "shard/engine/offload_streams.h"
#include "shard/engine/reduce/group_reduction.h"

namespace fsdp::shard {

/// Moves the result of another reduction to host memory and adds it to the shard's gradient there. No
/// collective waits for the copy.
class HostReduction final : public Reduction {
 public:
  HostReduction(Unit& unit, std::unique_ptr<GroupReduction> on_device)
      : unit_(unit), on_device_(std::move(on_device)) {}

  void start(Reach reach) override;
  void finish_sending() override;
  void finish_moving() override;
  void finish() override;
  bool is_under_way() const override { return false; }
  void use_gradient(std::function<void()> use) override;
  void reset() override;

 private:
  void finish_on_host() { std::exchange(on_host_, {}).wait(); }

  Unit& unit_;
  std::unique_ptr<GroupReduction> on_device_;
  at::Tensor leaving_;          ///< the gradient that is being copied to the host
  util::Event left_, on_host_;  ///< the end of that copy, and of the host's work on the gradient
};

}  // namespace fsdp::shard
