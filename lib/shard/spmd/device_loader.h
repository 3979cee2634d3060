#pragma once

// MpDeviceLoader: moves batches to the device ahead of their use, and cuts global ones to this rank's part,
// as the class of that name in PyTorch/XLA (torch_xla.distributed.parallel_loader) does.
//
//   MpDeviceLoader<> loader(read_batch, device, {.input_sharding = {{mesh, batch_spec()}}});
//   while (auto batch = loader.next()) loss_of(model, batch->at(0), batch->at(1)).backward();
//
// A thread reads batches and writes their tensors, and only this rank's part of global ones, to pinned
// memory, which is copied to the device beside the computation (base/tensor/device_feed.h). On the CPU
// nothing is copied.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/tensor/device_feed.h"
#include "comm/api/mesh.h"
#include "model/nn/hooked.h"
#include "shard/spmd/sharding_marks.h"

namespace fsdp::shard {

/// How the tensors of batches are cut over the ranks (XLA: ShardingSpec).
struct ShardingSpec {
  comm::Mesh mesh;
  PartitionSpec spec;
  /// Whether the loader reads only this rank's part of a batch. Off: it reads the global batch on every rank.
  bool minibatch = false;
};

/// Options of MpDeviceLoader.
struct DeviceLoaderOptions {
  /// One spec for all tensors of a batch, or one for each. The tensors are marked, so a module sharded by
  /// spmd_fully_shard() does not cut them again. Empty: batches stay as they are read, without marks.
  std::vector<ShardingSpec> input_sharding = {};
  size_t loader_prefetch_size = 2;  ///< batches that the thread reads ahead; 0: no thread
  size_t device_prefetch_size = 1;  ///< number of these batches that are sent ahead
};

namespace detail {

/// DeviceLoaderOptions::input_sharding, applied to the tensors of a batch. Not collective.
class InputSharding {
 public:
  explicit InputSharding(std::vector<ShardingSpec> specs) : specs_(std::move(specs)) {}
  /// Returns this rank's part of each tensor. Throws Error(kUsage) for specs that do not fit.
  std::vector<at::Tensor> cut(const nn::CallTensors& tensors) const;
  /// Marks the parts.
  void mark(const nn::CallTensors& parts) const;

 private:
  const ShardingSpec& spec_of(size_t tensor, size_t tensors) const;
  std::vector<ShardingSpec> specs_;
};

}  // namespace detail

/// Used by one thread, the one that computes. `Batch` may be any type in which hooks find tensors
/// (model/nn/hooked.h); everything else in it stays as it was read.
template <typename Batch = std::vector<at::Tensor>>
class MpDeviceLoader {
 public:
  /// Returns the next batch, in host memory; nullopt after the last one. Called on the loader's thread.
  using Source = std::function<std::optional<Batch>()>;

  MpDeviceLoader(Source loader, at::Device device, DeviceLoaderOptions options = {})
      : loader_(std::move(loader)),
        sharding_(std::move(options.input_sharding)),
        read_ahead_(options.loader_prefetch_size),
        feed_({.device = device,
               .has_thread = options.loader_prefetch_size > 0,
               .sent_ahead = options.device_prefetch_size}) {}

  /// Returns the next batch on the device; nullopt after the last one. Throws the source's exception, and
  /// Error(kUsage) for a batch that does not fit input_sharding. Not collective.
  std::optional<Batch> next() {
    while (reading_.size() <= read_ahead_) read();
    const std::shared_ptr<std::optional<Batch>> slot = std::move(reading_.front());
    reading_.pop_front();
    const std::vector<at::Tensor> arrived = feed_.take();
    std::optional<Batch> batch = std::move(*slot);
    if (!batch) return batch;
    nn::CallTensors tensors;
    nn::collect_tensors(*batch, tensors);
    for (size_t i = 0; i < tensors.size(); ++i) *tensors[i] = arrived[i];
    sharding_.mark(tensors);
    return batch;
  }

 private:
  void read() {
    reading_.push_back(std::make_shared<std::optional<Batch>>());
    feed_.add([this, slot = reading_.back()] {
      std::vector<at::Tensor> parts;
      if (has_ended_ || !(*slot = loader_())) {
        has_ended_ = true;
        return parts;
      }
      nn::CallTensors tensors;
      nn::collect_tensors(**slot, tensors);
      return sharding_.cut(tensors);
    });
  }

  Source loader_;
  detail::InputSharding sharding_;
  size_t read_ahead_;
  bool has_ended_ = false;                                     ///< written and read by the thread
  std::deque<std::shared_ptr<std::optional<Batch>>> reading_;  ///< batches that the feed reads
  util::DeviceFeed feed_;                                      ///< destroyed first
};

}  // namespace fsdp::shard
