// A model that several ranks compute, on meta tensors.

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "comm/fake/fake_communicator.h"
#include "model/nn/parallelize.h"
#include "model/parallel/step_collectives.h"
#include "support/counting_communicator.h"
#include "support/tiny_models.h"
#include "tools/plan/meta_memory.h"

namespace fsdp::plan {
namespace {

TEST(ParallelPass, CommunicatesOnMetaTensorsAsAPassOfValuesDoes) {
  for (const char* architecture : {"llama", "gpt2"}) {
    for (bool sequence_parallel : {true, false}) {
      nn::ModelOptions options = testing::tiny_options(architecture);
      options.num_attention_heads = 4;
      options.hidden_size = 16;
      options.tie_word_embeddings = true;
      const auto model = nn::make_decoder(options, at::kMeta);
      auto ranks =
          std::make_shared<testing::CountingCommunicator>(std::make_shared<comm::FakeCommunicator>(4));
      nn::parallelize(*model,
                      nn::model_kind(architecture).plan(options, {.sequence_parallel = sequence_parallel}),
                      ranks);
      const MetaMemory memory({.takes = [](int64_t) { return size_t{0}; }, .gives = [](size_t) {}});
      const at::Tensor ids = at::empty({2, 8}, at::TensorOptions().dtype(at::kLong).device(at::kMeta));
      const at::Tensor loss = nn::loss_of(*model, ids, ids, {.terms = {.label_smoothing = 0.1}});
      EXPECT_EQ(loss.dim(), 0);
      loss.backward();
      for (const auto& item : model->named_parameters()) {
        EXPECT_EQ(item.value().grad().sizes(), item.value().sizes()) << item.key();
      }
      const parallel::StepCollectives formula =
          parallel::step_collectives({.ranks = 4,
                                      .layers = 3,
                                      .hidden = 16,
                                      .rows = 2,
                                      .tokens = 8,
                                      .sequence_parallel = sequence_parallel});
      const int64_t expected =
          formula.all_gather.calls + formula.reduce_scatter.calls + formula.all_reduce.calls;
      EXPECT_EQ(static_cast<int64_t>(ranks->calls().size()), expected);
    }
  }
}

}  // namespace
}  // namespace fsdp::plan
