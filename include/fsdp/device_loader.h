#pragma once

/// \file
/// Batches that are on the device before they are used, like PyTorch/XLA's MpDeviceLoader: a thread reads
/// them and writes them to pinned memory, which is copied concurrently with the computation. With
/// input_sharding, a global batch is cut to this rank's part and marked, for models sharded by
/// spmd_fully_shard(). Without it, the loader serves any model.
///
/// Collective: nothing.
///
/// Errors: exceptions of the source, when its batch is due. Error(kUsage) for batches that do not fit
/// input_sharding.
///
/// Lifetime: the source is called on another thread until the loader is destroyed.
///
/// \code{.cpp}
/// void train(fsdp::Stage& model, const fsdp::Mesh& mesh, at::Device device) {
///   auto read_global_batch = [left = 100]() mutable -> std::optional<std::vector<at::Tensor>> {
///     if (left-- == 0) return std::nullopt;
///     return std::vector<at::Tensor>{torch::randn({8, 16}), torch::randn({8, 1})};
///   };
///   fsdp::MpDeviceLoader<> loader(read_global_batch, device,
///                                 {.input_sharding = {{mesh, fsdp::batch_spec()}}});
///   while (const auto batch = loader.next()) {
///     at::mse_loss(model.forward(batch->at(0)), batch->at(1)).backward();  // this rank's rows
///   }
/// }
/// \endcode

#include "shard/spmd/device_loader.h"

namespace fsdp {

using shard::batch_spec;
using shard::DeviceLoaderOptions;
using shard::MpDeviceLoader;
using shard::PartitionSpec;
using shard::ShardingSpec;

}  // namespace fsdp
