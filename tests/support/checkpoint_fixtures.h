#pragma once

// Small sharded checkpoints for tests: a set of tensors that any rank of any world can cut its slices from.

#include <ATen/Functions.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/util/error.h"
#include "base/util/file.h"
#include "comm/threads/thread_communicator.h"
#include "state/checkpoint/save.h"
#include "state/manifest/digest.h"
#include "state/manifest/folders.h"
#include "state/manifest/manifest.h"
#include "support/temporary_folder.h"

namespace fsdp::testing {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Random bits in every dtype (NaNs and infinities among them), sizes that no world divides, one element,
/// none.
inline NamedTensors assorted_tensors() {
  auto bits = [](std::vector<int64_t> shape, at::ScalarType dtype) {
    at::Tensor tensor = at::empty(shape, at::TensorOptions().dtype(dtype));
    auto* bytes = static_cast<unsigned char*>(tensor.data_ptr());
    uint64_t state = 12345 + static_cast<uint64_t>(tensor.numel());
    for (size_t i = 0; i < tensor.nbytes(); ++i) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      bytes[i] = static_cast<unsigned char>(state >> 56);
    }
    return tensor;
  };
  return {{"model/embed_tokens.weight", bits({13, 7}, at::kFloat)},
          {"model/layers.0.q.weight", bits({5, 3, 2}, at::kBFloat16)},
          {"model/layers.0.k.weight", bits({31}, at::kHalf)},
          {"model/scale", bits({}, at::kDouble)},
          {"model/two", bits({2}, at::kFloat)},
          {"model/none", bits({0, 4}, at::kFloat)},
          {"optimizer/exp_avg/embed_tokens.weight", bits({13, 7}, at::kFloat)},
          {"optimizer/step", bits({1}, at::kLong)},
          {"optimizer/mask", at::arange(9, at::kInt).remainder(2).to(at::kBool)},
          {"optimizer/counts", bits({6}, at::kShort)}};
}

/// Elements [begin, end) of `numel` that a rank holds in the flat layout: even parts, rounded up, so that the
/// last ranks may hold less or nothing.
inline std::pair<int64_t, int64_t> even_part(int64_t numel, int rank, int world_size) {
  int64_t part = (numel + world_size - 1) / world_size;
  return {std::min(rank * part, numel), std::min((rank + 1) * part, numel)};
}

/// A rank's slices; they share the tensors' memory.
inline std::vector<shard::TensorSlice> slices_of(const NamedTensors& tensors, int rank, int world_size) {
  std::vector<shard::TensorSlice> slices;
  for (const auto& [name, tensor] : tensors) {
    auto [begin, end] = even_part(tensor.numel(), rank, world_size);
    slices.push_back(
        {name, tensor.sizes().vec(), {begin, end}, tensor.view({-1}).narrow(0, begin, end - begin)});
  }
  return slices;
}

inline NamedTensors zeros_like(const NamedTensors& tensors) {
  NamedTensors zeros;
  for (const auto& [name, tensor] : tensors) zeros.emplace_back(name, at::zeros_like(tensor));
  return zeros;
}

/// Bitwise, so that NaNs count.
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         std::equal(static_cast<const char*>(a.data_ptr()),
                    static_cast<const char*>(a.data_ptr()) + a.nbytes(),
                    static_cast<const char*>(b.data_ptr()));
}

/// Saves from threads as ranks, as the run of that id if one is given, and returns the step's folder.
inline std::filesystem::path save_checkpoint(const std::filesystem::path& root, const NamedTensors& tensors,
                                             int world_size, int64_t step = 100,
                                             const std::string& run = "") {
  nlohmann::json training = {{"sample_position", 4096}, {"seed", 1234}};
  if (!run.empty()) training["run"] = run;
  comm::run_ranks_as_threads(world_size, [&](comm::Communicator& communicator) {
    checkpoint::SaveRequest request{.root = root,
                                    .step = step,
                                    .layout = "flat",
                                    .training = training,
                                    .model = {{"architecture", "llama"}, {"vocab_size", 13}}};
    checkpoint::save_sharded(request, slices_of(tensors, communicator.rank(), world_size), communicator);
  });
  return root / checkpoint::step_folder_name(step);
}

/// Changes a checkpoint's manifest, with a seal that fits, as one who lies would.
template <typename Change>
void edit_manifest(const std::filesystem::path& folder, const Change& change) {
  auto path = folder / checkpoint::kManifestName;
  auto manifest = nlohmann::json::parse(util::read_file(path));
  change(manifest);
  manifest["seal"] = checkpoint::seal_of(manifest);
  std::ofstream(path) << manifest.dump();
}

/// After a shard was altered: makes the manifest agree with its new bytes.
inline void bless_file(const std::filesystem::path& folder, const std::string& name) {
  checkpoint::FileDigest digest = checkpoint::digest_file(folder / name);
  edit_manifest(folder, [&](nlohmann::json& manifest) {
    for (auto& file : manifest["files"]) {
      if (file["name"] != name) continue;
      file["bytes"] = digest.bytes;
      file["xxh3_64"] = digest.xxh3_64;
    }
  });
}

inline void flip_byte(const std::filesystem::path& path, int64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(offset);
  char byte = static_cast<char>(file.get() ^ 0x10);
  file.seekp(offset);
  file.put(byte);
}

/// The util::Error that `body` throws; its kind and text.
template <typename Body>
std::pair<ErrorKind, std::string> error_of(const Body& body) {
  try {
    body();
  } catch (const util::Error& error) {
    return {error.kind(), error.what()};
  }
  return {ErrorKind::kUnexpected, "nothing was thrown"};
}

}  // namespace fsdp::testing
