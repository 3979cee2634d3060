#include "train/banner.h"

#include <gtest/gtest.h>

#include "shard/fully_shard.h"
#include "support/sharded_run.h"
#include "support/tiny_config.h"
#include "util/text.h"

namespace fsdp::train {
namespace {

TEST(Banner, SaysWhatIsTrainedOnWhatAndWhere) {
  testing::TemporaryFolder folder;
  config::Config config = testing::tiny_config(folder);
  config.training.gradient_accumulation_steps = 3;
  config.logging.peak_tflops = 0;
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    auto model = testing::make_initialized(config.model);
    int64_t parameters = nn::count_parameters(*model);
    auto engine = shard::fully_shard(*model, config.fsdp, testing::borrowed(communicator));
    data::TrainLoader loader(config.data, config.model.vocab_size, 1, {communicator.rank(), 2, 3});
    std::string text = banner(config, *engine, loader, {0.25e12, "measured"});
    for (const std::string& part :
         {util::with_commas(parameters) + " parameters", std::string("4 units"),
          std::string("compute    float32, fused kernels, products by "),
          std::string("; at best 0.250 TFLOP/s a rank (measured)"), std::string("12 sequences = 96 tokens"),
          config.run.output_dir, util::human_bytes(engine->shard_bytes()) + " of parameters a rank"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
    }
  });
}

TEST(Banner, SaysThatLinearLayersMultiplyInFloat8) {
  testing::TemporaryFolder folder;
  config::Config config = testing::tiny_config(folder);
  config.mixed_precision.param_dtype = "bfloat16";
  config.training.float8 = "tensorwise";
  config.model.matmul = "mkl";
  comm::run_ranks_as_threads(1, [&](comm::Communicator& communicator) {
    auto model = testing::make_initialized(config.model);
    auto engine = shard::fully_shard(*model, config::shard_options(config), testing::borrowed(communicator));
    data::TrainLoader loader(config.data, config.model.vocab_size, 1, {0, 1, 1});
    const std::string text = banner(config, *engine, loader, {0.25e12, "logging.peak_tflops"});
    EXPECT_NE(
        text.find("compute    bfloat16, fused kernels, linear layers in float8 (tensorwise); at best 0.250 "
                  "TFLOP/s a rank, in bfloat16, of which mfu is the share\n"),
        std::string::npos)
        << text;
  });
}

TEST(Banner, SaysWhatTheMeshMeans) {
  testing::TemporaryFolder folder;
  config::Config config = testing::tiny_config(folder);
  config.mesh.dcn = 2;
  config.fsdp.strategy = "hybrid_shard";
  comm::run_ranks_as_threads(4, [&](comm::Communicator& communicator) {
    auto model = testing::make_initialized(config.model);
    comm::Mesh mesh(config.mesh, testing::borrowed(communicator));
    auto engine = shard::fully_shard(*model, config.fsdp, mesh);
    data::TrainLoader loader(config.data, config.model.vocab_size, 1, {communicator.rank(), 4, 1});
    std::string text = banner(config, *engine, loader, {0.25e12});
    EXPECT_NE(
        text.find(
            "mesh       dcn 2 x data 2 x model 1: units sharded over data (2), replicated over dcn (2)"),
        std::string::npos)
        << text;
  });
}

}  // namespace
}  // namespace fsdp::train
