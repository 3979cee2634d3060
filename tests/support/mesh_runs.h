#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "state/manifest/folders.h"
#include "support/checkpoint_contents.h"
#include "support/trainer_fixture.h"

namespace fsdp::train {

/// Runs of the same global batches on different meshes, which are compared.
class MeshRuns : public TrainerTest {
 protected:
  MeshRuns() {
    config_.data.sequence_length = 16;
    config_.optimizer.name = "sgd";
    config_.optimizer.momentum = 0.9;
    config_.training.steps = 10;
    config_.evaluation.interval_steps = 5;
    config_.checkpoint.save_at_end = true;
  }

  static int ranks_of(const comm::MeshOptions& mesh) {
    return static_cast<int>(mesh.dcn * mesh.data * mesh.context * mesh.model);
  }
  config::Config on(const comm::MeshOptions& mesh, const std::string& name) const {
    config::Config config = config_;
    config.mesh = mesh;
    config.data.micro_batch_size = rows_ / (mesh.dcn * mesh.data);
    config.run.output_dir = folder_ / name;
    return config;
  }
  std::vector<double> metric(const std::string& name, const std::string& key) const {
    return testing::values_of(folder_ / name / "metrics.jsonl", key);
  }
  /// What run `found` reports, of what `expected` reports.
  void expect_near(const std::string& key, double relative, const std::string& expected = "one",
                   const std::string& found = "cut") const {
    const std::vector<double> theirs = metric(expected, key), ours = metric(found, key);
    ASSERT_FALSE(theirs.empty()) << key;
    ASSERT_EQ(ours.size(), theirs.size()) << key;
    for (size_t i = 0; i < theirs.size(); ++i) {
      EXPECT_NEAR(ours[i], theirs[i], relative * std::abs(theirs[i])) << key << ' ' << i;
    }
  }
  std::filesystem::path saved(const std::string& name) const {
    return checkpoint::find_checkpoints(folder_ / name).complete.back().folder;
  }
  /// Of the largest weight of each tensor.
  void expect_near_weights(double relative, const std::string& one = "one",
                           const std::string& other = "cut") const {
    const auto expected = testing::contents_of(saved(one)), found = testing::contents_of(saved(other));
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [name, tensor] : expected) {
      const double most = tensor.abs().max().item<double>();
      EXPECT_LE((found.at(name) - tensor).abs().max().item<double>(), relative * most) << name;
    }
  }

  int64_t rows_ = 4;  ///< of the global batch
};

}  // namespace fsdp::train
