// Training and evaluating on a device that records what its streams do (support/fake_device.h): batches come
// from pinned memory, ahead of their use.

#include <gtest/gtest.h>

#include <algorithm>

#include "run/train/evaluate.h"
#include "run/train/train_step.h"
#include "shard/engine/fully_shard.h"
#include "state/optim/engine_shards.h"
#include "support/fake_collectives.h"
#include "support/fake_device.h"
#include "support/sharded_run.h"
#include "support/tiny_config.h"

namespace fsdp::train {
namespace {

using testing::Entry;
using testing::FakeDevice;

class DeviceBatches : public ::testing::Test {
 protected:
  DeviceBatches() {
    config_.model.fused_kernels = false;  // which look at memory of the host
    config_.data.shuffle = false;
  }

  struct Run {
    std::vector<double> losses;
    double validation = 0;
  };

  /// Three steps of two micro-batches on two ranks, and a validation.
  Run train(bool on_device) {
    Run run;
    comm::run_ranks_as_threads(2, [&](comm::Communicator& rank) {
      at::set_num_threads(1);
      const auto world = on_device ? testing::on_fake_device(rank) : testing::borrowed(rank);
      testing::RunPlan plan;
      plan.model = config_.model;
      auto model = testing::make_model(plan, world->device());
      auto engine = shard::fully_shard(*model, config::shard_options(config_), world);
      optim::OptimizerOptions update = config_.optimizer;
      update.fused = false;
      auto optimizer = optim::make_optimizer(update, optim::flat_parameters(*engine, update));
      const data::Placement place{rank.rank(), rank.world_size(), 2};
      const data::TrainLoader loader(config_.data, config_.model.vocab_size, 1, place);
      const data::PrefetchingBatches batches(
          loader, {.depth = config_.data.prefetch_batches, .device = world->device()});
      TrainStep step({*model, *engine, *optimizer, batches},
                     {.gradient_accumulation_steps = 2, .counts_vary = data::counts_vary(config_.data)});
      for (int64_t i = 0; i < 3; ++i) {
        const StepResult result =
            step.run({.step = i + 1, .first_global_sample = i * loader.samples_per_step(), .lr = 1e-2});
        if (rank.rank() == 0) run.losses.push_back(result.loss);
      }
      if (config_.data.validation.empty()) return;
      const data::ValidationLoader validation(config_.data, config_.model.vocab_size, 0, place);
      const auto measured = validate(*model, validation, *world);
      if (rank.rank() == 0) run.validation = measured->loss;
    });
    return run;
  }

  void expect_equal_runs() {
    const Run expected = train(false);
    FakeDevice& fake = FakeDevice::get();
    fake.begin();
    const Run found = train(true);
    EXPECT_EQ(fake.report(), "");
    ASSERT_EQ(found.losses.size(), expected.losses.size());
    for (size_t i = 0; i < found.losses.size(); ++i) {
      EXPECT_NEAR(found.losses[i], expected.losses[i], 1e-5);
    }
    EXPECT_NEAR(found.validation, expected.validation, 1e-5);
  }

  /// Operations that copy 64-bit integers of a batch's size from the host to a rank's device.
  std::vector<Entry> copies_of_batches(int device) {
    const auto bytes =
        static_cast<uintptr_t>(8 * config_.data.micro_batch_size * config_.data.sequence_length);
    std::vector<Entry> copies;
    for (const Entry& entry : FakeDevice::get().log()) {
      if (entry.kind != Entry::Kind::kOperation || entry.name != "aten::copy_") continue;
      if (entry.stream.device != device || !entry.reads.empty() || entry.writes.size() != 1) continue;
      if (entry.writes[0].end - entry.writes[0].begin == bytes) copies.push_back(entry);
    }
    return copies;
  }

  testing::TemporaryFolder folder_;
  config::Config config_ = testing::tiny_config(folder_);
};

TEST_F(DeviceBatches, AreCopiedBesideTheComputation) {
  config_.data.validation = config_.data.train;
  expect_equal_runs();
  for (int rank = 0; rank < 2; ++rank) {
    const std::vector<Entry> copies = copies_of_batches(rank);
    // Inputs and targets of six micro-batches at least, then of the validation.
    EXPECT_GE(copies.size(), 12U);
    for (const Entry& copy : copies) {
      EXPECT_NE(copy.stream.id, 0) << "a copy on the stream of computation: " << copy.text();
    }
  }
}

TEST_F(DeviceBatches, WithoutAThreadToo) {
  config_.data.prefetch_batches = 0;
  expect_equal_runs();
}

TEST_F(DeviceBatches, OfVaryingSizesToo) {
  config_.data.documents = "split";
  config_.data.document_separator = 10;
  config_.data.max_tokens = 64;
  expect_equal_runs();
}

TEST_F(DeviceBatches, WithDocumentsToo) {
  config_.data.documents = "mask";
  config_.data.document_separator = 10;
  expect_equal_runs();
}

}  // namespace
}  // namespace fsdp::train
