#include <ATen/Parallel.h>

#include <map>
#include <string>
#include <vector>

#include "support/checkpoint_contents.h"
#include "support/trainer_fixture.h"
#include "train/arithmetic.h"

namespace fsdp::train {
namespace {

/// How a run of the same training is shared out.
struct Sharing {
  int ranks = 1;
  int64_t rows = 4;  ///< of a micro-batch
  shard::Strategy strategy = shard::Strategy::kFullShard;
  shard::Layout layout = shard::Layout::kFlat;
  bool offload = false;
  int64_t replicas = 1;

  std::string text() const {
    return util::concat(ranks, " ranks, ", rows, " rows, ", util::Named(strategy), ", ", util::Named(layout),
                        offload ? ", offload" : "", ", dcn ", replicas);
  }
};

class ReproducibleTest : public TrainerTest {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    config_.training.reproducible = config::Reproducible::kWorldSize;
    config_.training.global_batch_size = 24;
    config_.training.gradient_accumulation_steps = 0;
    config_.training.steps = 3;
    config_.training.max_grad_norm = 0.5;
    config_.checkpoint.save_at_end = true;
  }

  config::Config config_of(const Sharing& sharing, const std::string& name) const {
    config::Config config = config_;
    config.run.output_dir = folder_ / name;
    config.data.micro_batch_size = sharing.rows;
    config.fsdp.strategy = sharing.strategy;
    config.fsdp.layout = sharing.layout;
    config.fsdp.cpu_offload = sharing.offload;
    config.mesh.dcn = static_cast<int>(sharing.replicas);
    return config;
  }

  std::filesystem::path checkpoint_of(const Sharing& sharing) {
    const std::string name = util::concat("run", ++runs_);
    train(sharing.ranks, config_of(sharing, name));
    return folder_ / name / util::concat("step-0000000", config_.training.steps);
  }

  /// Weights, optimizer state and metrics are those of one rank.
  void expect_same_results(const std::vector<Sharing>& all) {
    const std::filesystem::path first = checkpoint_of({});
    for (const Sharing& sharing : all) {
      SCOPED_TRACE(sharing.text());
      const std::filesystem::path found = checkpoint_of(sharing);
      testing::expect_equal_checkpoints(first, found);
      for (const char* key : {"loss", "grad_norm", "validation_loss"}) {
        EXPECT_EQ(testing::values_of(first.parent_path() / "metrics.jsonl", key),
                  testing::values_of(found.parent_path() / "metrics.jsonl", key))
            << key;
      }
    }
  }

  int runs_ = 0;
};

TEST_F(ReproducibleTest, ResultsDoNotDependOnTheSizeOfMicroBatches) {
  expect_same_results({{.rows = 1}, {.rows = 2}, {.rows = 8}, {.rows = 12}});
}

TEST_F(ReproducibleTest, ResultsDoNotDependOnTheNumberOfRanks) {
  expect_same_results({{.ranks = 2}, {.ranks = 2, .rows = 2}, {.ranks = 4, .rows = 2}, {.ranks = 8, .rows = 1}});
}

TEST_F(ReproducibleTest, ResultsDoNotDependOnThreads) {
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const auto one = checkpoint_of({});
  at::set_num_threads(2);
  testing::expect_equal_checkpoints(one, checkpoint_of({}));
  at::set_num_threads(before);
}

TEST_F(ReproducibleTest, ResultsAreTheSameOnOtherNumbersThanPowersOfTwo) {
  expect_same_results({{.ranks = 3}, {.ranks = 3, .rows = 2}, {.ranks = 6, .rows = 1}});
}

}  // namespace
}  // namespace fsdp::train
