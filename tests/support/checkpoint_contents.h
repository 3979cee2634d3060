#pragma once

// What complete checkpoints hold, read whole, to compare them.

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "state/checkpoint/load.h"
#include "support/checkpoint_fixtures.h"

namespace fsdp::testing {

/// Every tensor of a checkpoint under its name.
inline std::map<std::string, at::Tensor> contents_of(const std::filesystem::path& folder) {
  std::map<std::string, at::Tensor> contents;
  std::vector<shard::TensorSlice> slices;
  checkpoint::Manifest manifest = checkpoint::read_manifest(folder);
  for (const auto& [name, entry] : manifest.tensors) {
    at::Tensor tensor = at::zeros(entry.shape, at::TensorOptions().dtype(entry.dtype));
    contents[name] = tensor;
    slices.push_back({name, entry.shape, {0, entry.numel}, tensor.view({-1})});
  }
  checkpoint::load_slices(folder, manifest, slices, {.refuse_unexpected = true});
  return contents;
}

/// Weights and optimizer state bit for bit, and all that the trainer keeps beside them but the time and the
/// run's id.
inline void expect_equal_checkpoints(const std::filesystem::path& a, const std::filesystem::path& b) {
  auto of_a = contents_of(a), of_b = contents_of(b);
  EXPECT_EQ(of_a.size(), of_b.size());
  for (const auto& [name, tensor] : of_a) {
    ASSERT_TRUE(of_b.contains(name)) << name;
    EXPECT_TRUE(same_bits(tensor, of_b.at(name))) << name;
  }
  checkpoint::Manifest first = checkpoint::read_manifest(a), second = checkpoint::read_manifest(b);
  EXPECT_EQ(first.step, second.step);
  for (auto* manifest : {&first, &second}) {
    if (!manifest->training.is_object()) continue;
    manifest->training.erase("training_seconds");
    manifest->training.erase("run");
  }
  EXPECT_EQ(first.training, second.training);
  EXPECT_EQ(first.model, second.model);
}

}  // namespace fsdp::testing
