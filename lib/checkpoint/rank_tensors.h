#pragma once

// What one rank brings to a checkpoint, checked and put in order.

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "shard/tensor_slice.h"

namespace fsdp::checkpoint {

/// A tensor's slices on this rank.
struct RankTensor {
  const shard::TensorSlice* any = nullptr;        ///< for shape and dtype; never null
  std::vector<const shard::TensorSlice*> slices;  ///< ascending, without the empty ones
};

/// By name; the slices must live as long as the result. They must lie contiguous in CPU memory.
std::map<std::string, RankTensor> group_by_tensor(const std::vector<shard::TensorSlice>& slices);

/// {name: {shape, dtype, rows, ranges: [[begin, end], ...]}}, as the other ranks are told.
nlohmann::json describe(const std::map<std::string, RankTensor>& tensors);

/// Adds what describe() gave on one rank to the manifest, as ranges in its file number `file`. kCheckpoint
/// when it contradicts another rank's; `who` says in the message where it comes from.
void add_described(Manifest& manifest, const nlohmann::json& described, size_t file, const std::string& who);

}  // namespace fsdp::checkpoint
