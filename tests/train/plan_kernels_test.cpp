// What a plan says of kernels that it does not link, against those kernels.

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/attention.h"
#include "kernels/block_product.h"
#include "kernels/float8.h"
#include "kernels/fused.h"
#include "kernels/matmul.h"
#include "nn/decoder.h"
#include "plan/kernel_choices.h"
#include "plan/linear_layers.h"
#include "support/run_program.h"
#include "train/float8_layers.h"
#include "util/compute_threads.h"
#include "util/error.h"

namespace fsdp::train {
namespace {

TEST(PlanKernels, CutTheLogitsIntoTheSameChunks) {
  for (int64_t rows : {1, 7, 64, 4096, 1 << 20}) {
    for (int64_t vocabulary : {1, 17, 256, 50'257, 128'256, 1 << 24, 1 << 26}) {
      EXPECT_EQ(plan::cross_entropy_chunk_rows(rows, vocabulary),
                kernels::cross_entropy_chunk_rows(rows, vocabulary))
          << rows << " rows of " << vocabulary;
    }
  }
}

TEST(PlanKernels, AreMklsWhereTheseAre) {
  for (const char* name : {"auto", "mkl", "onednn"}) {
    EXPECT_EQ(plan::avoids_mkl(name), kernels::matmul_by_name(name) != kernels::Matmul::kMkl) << name;
  }
}

TEST(PlanKernels, MultiplyAndAttendInTheSameWay) {
  for (const auto& [name, type] : {std::pair("float32", at::kFloat), std::pair("bfloat16", at::kBFloat16),
                                   std::pair("float16", at::kHalf)}) {
    EXPECT_EQ(plan::has_small_products(name), kernels::has_small_products(type)) << name;
    for (int64_t head_dim : {64, 63}) {
      EXPECT_EQ(plan::has_attention_kernel(name, head_dim),
                kernels::can_attend(at::empty({1, 2, 1, head_dim}, at::TensorOptions().dtype(type))))
          << name << " " << head_dim;
    }
  }
}

/// Of the linear layers of the model's blocks, those that a plan takes to multiply in 8 bits.
std::vector<std::string> planned_in_float8(const config::Config& config) {
  const bool llama = config.model.architecture == "llama";
  std::vector<std::string> names;
  const auto add = [&](const std::string& stage, plan::LinearLayers layers) {
    plan::choose_float8(layers, stage, plan::float8_choice(config));
    for (const plan::LinearLayer& layer : layers) {
      if (layer.float8) names.push_back(stage + "." + layer.name);
    }
  };
  for (int64_t block = 0; block < config.model.num_hidden_layers; ++block) {
    const std::string path = util::concat(llama ? "model.layers." : "transformer.h.", block);
    add(path + (llama ? ".self_attn" : ".attn"), plan::linear_layers(nn::attention_layers(config.model)));
    add(path + ".mlp", plan::linear_layers(nn::feed_forward_spec(config.model).layers()));
  }
  return names;
}

TEST(PlanKernels, MultiplyTheSameLayersInEightBits) {
  config::Config config;
  config.training.float8 = "tensorwise";
  config.model.hidden_size = 64;
  config.model.num_hidden_layers = 2;
  config.model.num_attention_heads = 4;
  for (const bool llama : {true, false}) {
    config.model.architecture = llama ? "llama" : "gpt2";
    config.model.num_key_value_heads = llama ? 2 : 4;
    config.training.float8_exclude = {llama ? "*.0.self_attn.o_proj.*" : "*.0.attn.c_attn.weight"};
    config.mixed_precision.keep_float32 = {"*.1.mlp.*_proj.weight"};
    for (const int64_t inner : {176, 172}) {  // the latter is no multiple of 16
      config.model.intermediate_size = inner;
      const auto model = nn::make_decoder(config.model, at::kMeta);
      EXPECT_THAT(planned_in_float8(config),
                  ::testing::UnorderedElementsAreArray(apply_float8(config, *model, at::kCPU).chosen))
          << config.model.architecture << " " << inner;
    }
  }
  EXPECT_EQ(plan::kFloat8Multiple, kernels::kFloat8Multiple);
}

// For processes in which nobody has set the number: the next test starts them.
TEST(PlanKernels, DISABLED_AreRunByAsManyThreads) {
  EXPECT_EQ(util::default_compute_threads(), at::get_num_threads());
}

TEST(PlanKernels, AreRunByAsManyThreadsWhateverTheEnvironmentSays) {
  using Environment = std::map<std::string, std::optional<std::string>>;
  const Environment unset = {
      {"OMP_NUM_THREADS", std::nullopt}, {"MKL_NUM_THREADS", std::nullopt}, {"MKL_DYNAMIC", std::nullopt}};
  for (const Environment& changes :
       {Environment{}, Environment{{"OMP_NUM_THREADS", "1"}}, Environment{{"OMP_NUM_THREADS", "512"}},
        Environment{{"MKL_NUM_THREADS", "1"}, {"OMP_NUM_THREADS", "2"}},
        Environment{{"MKL_NUM_THREADS", "0"}, {"OMP_NUM_THREADS", "1"}},
        Environment{{"MKL_NUM_THREADS", "x"}},
        Environment{{"MKL_DYNAMIC", "FALSE"}, {"OMP_NUM_THREADS", "7,2"}},
        Environment{{"MKL_DYNAMIC", "false"}, {"MKL_NUM_THREADS", "9"}}}) {
    Environment environment = unset;
    std::string trace;
    for (const auto& [name, value] : changes) {
      environment[name] = value;
      trace += name + "=" + *value + " ";
    }
    const testing::ProgramResult result =
        testing::run({"/proc/self/exe", "--gtest_also_run_disabled_tests", "--gtest_brief=0",
                      "--gtest_filter=PlanKernels.DISABLED_AreRunByAsManyThreads"},
                     {.env = environment});
    EXPECT_EQ(result.exit_code, 0) << trace << result.out;
    EXPECT_NE(result.out.find("[  PASSED  ] 1 test"), std::string::npos) << trace << result.out;
  }
}

}  // namespace
}  // namespace fsdp::train
