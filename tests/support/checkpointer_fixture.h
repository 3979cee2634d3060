#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/util/log.h"
#include "comm/threads/thread_communicator.h"
#include "run/train/checkpointer.h"
#include "run/train/run_parts.h"
#include "support/blocked_folder.h"
#include "support/sharded_run.h"
#include "support/temporary_folder.h"
#include "support/tiny_config.h"

namespace fsdp::train {

/// A rank of a run without the loop around it.
struct Rank {
  Rank(const config::Config& config_, comm::Communicator& communicator)
      : number(communicator.rank()),
        config(config_),
        loader(open_training_data(config, communicator)),
        mesh(config.mesh, testing::borrowed(communicator)),
        parts(build_run_parts(config, mesh, nullptr)),
        batches(loader, prefetch_options(config, mesh)),
        step(make_train_step(config, parts, batches)),
        checkpointer(config, {*parts.engine, *parts.optimizer, nullptr}, communicator, {}) {}

  /// The loss of the last step.
  double train(int64_t steps) {
    double loss = 0;
    for (int64_t i = 0; i < steps; ++i) {
      loss = step->run({.step = position.step + 1, .first_global_sample = position.samples_seen, .lr = 1e-2})
                 .loss;
      ++position.step;
      position.samples_seen += loader.samples_per_step();
      position.tokens_seen += loader.samples_per_step() * config.data.sequence_length;
    }
    return loss;
  }

  int number;
  config::Config config;
  data::TrainLoader loader;
  comm::Mesh mesh;
  RunParts parts;
  data::PrefetchingBatches batches;
  std::unique_ptr<TrainStep> step;
  Checkpointer checkpointer;
  RunPosition position;
};

/// Runs on threads as ranks, in a folder of their own, whose log is kept.
class CheckpointerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    util::set_log_sink([this](util::LogLevel level, std::string_view line) {
      std::lock_guard lock(mutex_);
      (level == util::LogLevel::kWarning ? warnings_ : lines_).emplace_back(line);
    });
  }
  void TearDown() override { util::set_log_sink({}); }

  template <typename Body>
  void on_ranks(int world_size, const config::Config& config, const Body& body) {
    comm::run_ranks_as_threads(world_size, [&](comm::Communicator& communicator) {
      Rank rank(config, communicator);
      rank.position = rank.checkpointer.restore();
      body(rank);
    });
  }

  /// Trains two steps and saves.
  std::filesystem::path save_run(int world_size, const config::Config& config) {
    on_ranks(world_size, config, [](Rank& rank) {
      rank.train(2);
      rank.checkpointer.save(rank.position);
      rank.checkpointer.finish();
      rank.checkpointer.require_last_save();
    });
    return std::filesystem::path(config.run.output_dir) / "step-00000002";
  }

  /// The output folder cannot be written from now on, or again.
  void block() { blocked_.emplace(folder_ / "out"); }
  void unblock() { blocked_.reset(); }

  testing::TemporaryFolder folder_;
  config::Config config_ = testing::tiny_config(folder_);
  std::mutex mutex_;
  std::vector<std::string> lines_, warnings_;
  std::optional<testing::BlockedFolder> blocked_;
};

}  // namespace fsdp::train
