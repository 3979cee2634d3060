#include "run/train/run_start.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/util/text.h"
#include "comm/api/communicator.h"
#include "comm/threads/thread_communicator.h"
#include "run/train/run_parts.h"
#include "shard/engine/fully_shard.h"
#include "support/sharded_run.h"
#include "support/tiny_config.h"

namespace fsdp::train {
namespace {

ShardedModel sharded(std::shared_ptr<nn::Stage> model, std::shared_ptr<shard::Engine> engine) {
  ShardedModel parts;
  parts.model = std::move(model);
  parts.engine = std::move(engine);
  return parts;
}

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
    std::string text = banner(config, sharded(model, engine), loader, {0.25e12, "measured"});
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
    const std::string text = banner(config, sharded(model, engine), loader, {0.25e12, "logging.peak_tflops"});
    EXPECT_NE(
        text.find("compute    bfloat16, fused kernels, linear layers in float8 (tensorwise); at best 0.250 "
                  "TFLOP/s a rank, in bfloat16, to which mfu is relative\n"),
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
    std::string text = banner(config, sharded(model, engine), loader, {0.25e12});
    EXPECT_NE(
        text.find(
            "mesh       dcn 2 x data 2 x context 1 x model 1: units sharded over data (2), replicated over dcn (2)"),
        std::string::npos)
        << text;
    EXPECT_EQ(text.find("of its slice's"), std::string::npos) << text;
    config::Config global = config;
    global.fsdp.hybrid_optimizer = "global";
    auto other = testing::make_initialized(config.model);
    const auto divided = shard::fully_shard(*other, global.fsdp, mesh);
    text = banner(global, sharded(other, divided), loader, {0.25e12});
    for (const char* part : {"hybrid_shard with a global optimizer", " of copies that gathers send",
                             "optimizer state sharded over dcn x data (4)"}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  });
}

TEST(Banner, CountsTheRowsOfAContextGroupOnce) {
  testing::TemporaryFolder folder;
  config::Config config = testing::tiny_config(folder);
  config.mesh = {.dcn = 1, .data = 2, .context = 2};
  comm::run_ranks_as_threads(4, [&](comm::Communicator& communicator) {
    auto model = testing::make_initialized(config.model);
    comm::Mesh mesh(config.mesh, testing::borrowed(communicator));
    auto engine = shard::fully_shard(*model, config.fsdp, mesh);
    const data::TrainLoader loader = open_training_data(config, communicator);
    EXPECT_EQ(loader.samples_per_step(), 4);
    const std::string text = banner(config, sharded(model, engine), loader, {0.25e12});
    for (
        const char* part :
        {"dcn 1 x data 2 x context 2 x model 1: units sharded over data x context (4)",
         "context    each sequence over 2 ranks, 4 tokens a rank in two chunks; keys and values go round a ring",
         "4 sequences = 32 tokens a step (2 groups of 2 ranks x 1 micro-batches x 2 sequences x 8 tokens)"}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  });
}

TEST(RunEnvironment, NamesVersionsProcessorAndRanks) {
  const comm::SingleCommunicator communicator;
  const nlohmann::ordered_json environment =
      run_environment(communicator, {.flops_per_second = 3e12, .source = "data sheet"});
  EXPECT_EQ(environment["ranks"], 1);
  EXPECT_TRUE(environment["libtorch"].get<std::string>().starts_with("2."));
  for (const char* key : {"fsdp", "started", "communication", "host", "cpu", "cpu_instructions", "memory"}) {
    EXPECT_FALSE(environment[key].get<std::string>().empty()) << key;
  }
  EXPECT_EQ(environment["peak_tflops_a_rank"], 3);
  EXPECT_EQ(environment["peak_tflops_source"], "data sheet");
  EXPECT_GE(environment["threads_a_rank"].get<int>(), 1);
}

using ::testing::HasSubstr;

class SameRun : public ::testing::Test {
 protected:
  /// What every rank is told when `change` is made on rank 1 of three.
  std::string refusal(const std::function<void(config::Config&)>& change) {
    std::vector<std::string> texts(3, "no error");
    comm::run_ranks_as_threads(3, [&](comm::Communicator& communicator) {
      config::Config config = config_;
      if (communicator.rank() == 1) change(config);
      try {
        require_same_run(config, communicator);
      } catch (const comm::AgreedError& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kUsage);
        texts[static_cast<size_t>(communicator.rank())] = error.what();
      }
    });
    EXPECT_EQ(texts[1], texts[0]);
    EXPECT_EQ(texts[2], texts[0]);
    return texts[0];
  }

  testing::TemporaryFolder folder_;
  config::Config config_ = testing::tiny_config(folder_);
};

TEST_F(SameRun, IsWhatAllRanksMustBeAboutToRun) {
  EXPECT_EQ(refusal([](auto&) {}), "no error");
}

TEST_F(SameRun, ADifferentKeyIsNamedWithItsRank) {
  std::string text = refusal([](auto& config) { config.optimizer.lr = 0.5; });
  EXPECT_THAT(text, HasSubstr("rank 1"));
  EXPECT_THAT(text, HasSubstr("optimizer.lr: "));
  EXPECT_THAT(text, HasSubstr("-> 0.5"));
}

TEST_F(SameRun, AReferenceMayLieElsewhere) {
  config_.training.objective = "dpo";
  config_.model.init_from = folder_ / "weights";
  EXPECT_EQ(refusal([&](auto& config) { config.preference.reference_model = folder_ / "elsewhere"; }),
            "no error");
  EXPECT_THAT(refusal([](auto& config) { config.preference.beta = 0.5; }),
              HasSubstr("preference.beta: 0.1 -> 0.5"));
  EXPECT_THAT(refusal([](auto& config) { config.preference.reference = nn::ReferenceSource::kStored; }),
              HasSubstr("preference.reference"));
}

TEST_F(SameRun, TheMeshIsPartOfIt) {
  EXPECT_THAT(refusal([](auto& config) { config.mesh.dcn = 3; }), HasSubstr("mesh.dcn: 1 -> 3"));
}

TEST_F(SameRun, DataMayLieElsewhereButMustBeTheSame) {
  std::filesystem::copy(folder_ / "train.bin", folder_ / "copy.bin");
  EXPECT_EQ(refusal([&](auto& config) { config.data.train = {folder_ / "copy.bin"}; }), "no error");
  testing::write_token_file(folder_ / "other.bin", 1000, config_.model.vocab_size);
  EXPECT_THAT(refusal([&](auto& config) { config.data.train = {folder_ / "other.bin"}; }),
              HasSubstr("files of data.train"));
}

}  // namespace
}  // namespace fsdp::train
