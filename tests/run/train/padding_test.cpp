// Rows that are longer than their document: padding is neither a token of the metrics nor of the experts'
// balance.

#include <gtest/gtest.h>

#include "data/loading/loader.h"
#include "support/mesh_runs.h"

namespace fsdp::train {
namespace {

class Padding : public MeshRuns {
 protected:
  Padding() {
    config_.data.documents = data::DocumentTreatment::kSplit;
    config_.data.document_separator = 3;
    config_.data.shuffle = false;
    config_.training.steps = 3;
    config_.evaluation.interval_steps = 0;
  }

  int64_t tokens_of_run() const {
    data::DataOptions options = config_.data;
    options.micro_batch_size = rows_;
    const data::TrainLoader loader(options, config_.model.vocab_size, 1, {});
    int64_t tokens = 0;
    for (int64_t step = 0; step < config_.training.steps; ++step) {
      const data::Batch batch = loader.batch(step * rows_, 0);
      for (const int64_t of_row : batch.row_tokens) tokens += of_row;
      EXPECT_LT(batch.counted, batch.targets.numel()) << "no padding";
    }
    return tokens;
  }
};

TEST_F(Padding, IsNotCountedAsTokensOnAnyMesh) {
  const auto expected = static_cast<double>(tokens_of_run());
  for (const comm::MeshOptions& mesh :
       {comm::MeshOptions{.dcn = 1, .data = 1}, comm::MeshOptions{.dcn = 1, .data = 2},
        comm::MeshOptions{.dcn = 1, .data = 2, .context = 2},
        comm::MeshOptions{.dcn = 1, .data = 1, .model = 2}}) {
    const std::string name = concat("run", mesh.data, mesh.context, mesh.model);
    train(ranks_of(mesh), on(mesh, name));
    EXPECT_EQ(metric(name, "tokens").back(), expected) << name;
  }
}

TEST_F(Padding, IsLeftOutOfTheBalanceOfExperts) {
  config_.model = testing::family_options("mixtral");
  config_.model.router_aux_loss_coef = 1;
  config_.training.steps = 1;
  // One row a micro-batch, so that both runs balance the same tokens.
  rows_ = 1;
  train(1, on({.dcn = 1, .data = 1}, "one"));
  config_.data.sequence_length *= 2;  // twice as much of the row is padding
  train(1, on({.dcn = 1, .data = 1}, "cut"));
  expect_near("loss", 1e-5);
  expect_near("grad_norm", 1e-4);
}

TEST_F(Padding, IsLeftOutWhereSequencesAreCutAndByMarks) {
  config_.model = testing::family_options("mixtral");
  config_.model.router_aux_loss_coef = 1;
  train(4, on({.dcn = 1, .data = 2, .context = 2}, "context"));
  EXPECT_EQ(metric("context", "loss").size(), 3u);
  train(2, on({.dcn = 1, .data = 2}, "one"));
  config::Config marked = on({.dcn = 1, .data = 2}, "cut");
  marked.fsdp.front = config::Front::kSpmd;
  marked.fsdp.layout = shard::Layout::kPerParameter;
  train(2, marked);
  expect_near("loss", 1e-6);
}

}  // namespace
}  // namespace fsdp::train
