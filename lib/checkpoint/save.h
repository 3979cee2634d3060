#pragma once

// Writes a sharded checkpoint: all ranks at once, each its own file, the manifest last.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/tensor_slice.h"
#include "comm/communicator.h"

namespace fsdp::checkpoint {

struct SaveRequest {
  std::filesystem::path root;  ///< the run's output folder, shared by all ranks; the step's folder goes in it
  int64_t step = 0;            ///< optimizer steps done
  std::string layout;          ///< of the shards: "flat" or "per_parameter"
  nlohmann::json training;     ///< the trainer's own: sample position, seed, ...; rank 0's counts
  nlohmann::json model;        ///< the model's config with Hugging Face's keys; rank 0's counts
};

/// Writes what this rank holds; together the ranks' slices must hold every element of every tensor exactly
/// once (a replica gives empty slices), in any number of slices of a tensor. The tensors lie contiguous in
/// CPU memory and are written from there without a copy.
///
/// Collective. When it returns, the checkpoint is complete and on the disk; when it throws, it does so on
/// every rank, and no checkpoint of that step is there that was not there before: kCheckpoint when a complete
/// one is there already (it is never overwritten) or the slices do not add up, kIo when the disk is full or
/// refuses. What an interrupted save of the same step left is removed; a finished but damaged one is renamed.
void save_sharded(const SaveRequest& request, const std::vector<TensorSlice>& slices,
                  comm::Communicator& communicator);

}  // namespace fsdp::checkpoint
