#pragma once

// The hook of a module sharded by spmd_fully_shard(): cuts its inputs and marks its output.

#include <memory>

#include "comm/api/mesh.h"
#include "model/nn/hooked.h"
#include "shard/spmd/spmd_fully_shard.h"

namespace fsdp::shard {

class SpmdHook final : public nn::CallHook {
 public:
  SpmdHook(const comm::Mesh& mesh, ShardOutput shard_output, bool first_output_is_chosen)
      : mesh_(mesh), shard_output_(std::move(shard_output)), is_warned_(first_output_is_chosen) {}

  /// The module is inside a sharded one from now on: its inputs are this rank's parts.
  void set_inner() { is_inner_ = true; }

  std::shared_ptr<void> before(const nn::CallTensors& inputs) override;
  void after(const nn::CallTensors& outputs) override;

 private:
  void cut_batch(const nn::CallTensors& inputs) const;

  comm::Mesh mesh_;
  ShardOutput shard_output_;
  bool is_inner_ = false, is_warned_;
};

}  // namespace fsdp::shard
