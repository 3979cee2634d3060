// Low-rank adapters as GGUF files.

#include "state/gguf_export/adapter.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "state/gguf/gguf_fixtures.h"

namespace fsdp::gguf {
namespace {

using namespace fsdp::testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class GgufAdapter : public ::testing::Test {
 protected:
  AdapterFile write(const nn::ModelOptions& options, const std::vector<AdapterTensors>& adapters) const {
    return write_adapter({.output = file(),
                          .model_config = checkpoint::hugging_face_config(options),
                          .where = "config.json",
                          .alpha = 16,
                          .overwrite = true},
                         adapters);
  }
  void expect_refused(const AdapterTensors& adapter, const std::string& text) const {
    auto [kind, found] = error_of([&] { write(gguf_options("llama3"), {adapter}); });
    EXPECT_EQ(kind, ErrorKind::kCheckpoint);
    EXPECT_THAT(found, HasSubstr(text));
    EXPECT_FALSE(std::filesystem::exists(file()));
  }
  std::filesystem::path file() const { return folder_ / "adapter.gguf"; }
  TemporaryFolder folder_;
};

TEST_F(GgufAdapter, HasTheTensorsUnderTheNamesOfTheModel) {
  const at::Tensor a = at::randn({4, 64}), b = at::randn({96, 4});
  const AdapterFile written = write(gguf_options("llama"), {{"model.layers.1.mlp.up_proj.weight", a, b}});
  EXPECT_EQ(written.bytes, static_cast<int64_t>(std::filesystem::file_size(file())));
  const Reader reader(file());
  EXPECT_EQ(*reader.find<std::string>("general.type"), "adapter");
  EXPECT_EQ(*reader.find<std::string>("general.architecture"), "llama");
  EXPECT_EQ(*reader.find<std::string>("adapter.type"), "lora");
  EXPECT_EQ(*reader.find<float>("adapter.lora.alpha"), 16.0F);
  ASSERT_EQ(reader.tensors().size(), 2U);
  EXPECT_TRUE(at::equal(dequantised(reader, "blk.1.ffn_up.weight.lora_a"), a));
  EXPECT_TRUE(at::equal(dequantised(reader, "blk.1.ffn_up.weight.lora_b"), b));
}

TEST_F(GgufAdapter, InterleavesTheRowsOfBAsThoseOfItsWeight) {
  const at::Tensor b = at::arange(64, at::kFloat).view({64, 1}).contiguous();
  const AdapterTensors query{"model.layers.0.self_attn.q_proj.weight", at::ones({1, 64}), b};
  write(gguf_options("llama"), {query});
  const at::Tensor stored = dequantised(Reader(file()), "blk.0.attn_q.weight.lora_b").view({-1});
  EXPECT_EQ(stored[1].item<float>(), 8.0F);
  EXPECT_EQ(stored[2].item<float>(), 1.0F);
  EXPECT_EQ(stored[16].item<float>(), 16.0F);
  write(gguf_options("qwen2"), {query});
  EXPECT_TRUE(at::equal(dequantised(Reader(file()), "blk.0.attn_q.weight.lora_b"), b));
}

TEST_F(GgufAdapter, ReordersTheRowsOfBAsThoseOfItsQueriesKeysAndValues) {
  const at::Tensor b = at::arange(192, at::kFloat).view({192, 1}).contiguous();
  write(gguf_options("gpt_neox"),
        {{"gpt_neox.layers.0.attention.query_key_value.weight", at::ones({1, 64}), b}});
  const at::Tensor stored = dequantised(Reader(file()), "blk.0.attn_qkv.weight.lora_b").view({-1});
  EXPECT_EQ(stored[16].item<float>(), 48.0F) << "the queries of the second head";
  EXPECT_EQ(stored[64].item<float>(), 16.0F) << "the keys of the first";
}

TEST_F(GgufAdapter, OfTransposedWeightsIsTheSameLinearMap) {
  const at::Tensor a = at::randn({2, 64}), b = at::randn({192, 2});
  write(gguf_options("gpt2"), {{"transformer.h.0.attn.c_attn.weight", a, b}});
  const Reader reader(file());
  EXPECT_TRUE(at::equal(dequantised(reader, "blk.0.attn_qkv.weight.lora_a"), a));
  EXPECT_TRUE(at::equal(dequantised(reader, "blk.0.attn_qkv.weight.lora_b"), b));
}

TEST_F(GgufAdapter, OfAnExpertIsStackedWithZerosForTheOthers) {
  const std::string experts = "model.layers.1.block_sparse_moe.experts.";
  const at::Tensor a = at::randn({2, 64}), b = at::randn({96, 2});
  const AdapterTensors last{experts + "3.w1.weight", a, b}, first{experts + "0.w1.weight", 2 * a, 3 * b};
  EXPECT_EQ(write(gguf_options("mixtral"), {last, first}).tensors, 2);
  const Reader reader(file());
  ASSERT_EQ(reader.tensors().size(), 2U);
  const at::Tensor stacked_a = dequantised(reader, "blk.1.ffn_gate_exps.weight.lora_a"),
                   stacked_b = dequantised(reader, "blk.1.ffn_gate_exps.weight.lora_b");
  EXPECT_TRUE(at::equal(stacked_a, at::stack({2 * a, 0 * a, 0 * a, a})));
  EXPECT_TRUE(at::equal(stacked_b, at::stack({3 * b, 0 * b, 0 * b, b})));
  const AdapterTensors wider{experts + "0.w1.weight", at::ones({3, 64}), at::ones({96, 3})};
  EXPECT_THAT(
      error_of([&] {
        write(gguf_options("mixtral"), {last, wider});
      }).second,
      HasSubstr("the adapter of model.layers.1.block_sparse_moe.experts.0.w1.weight must have the rank of "
                "the others in blk.1.ffn_gate_exps.weight, but has another; merge"));
}

TEST_F(GgufAdapter, ThatDoesNotFitTheModelIsRefused) {
  const at::Tensor a = at::ones({2, 64}), b = at::ones({96, 2});
  expect_refused({"model.layers.2.mlp.up_proj.weight", a, b}, "must belong to a matrix of the model");
  expect_refused({"model.embed_tokens.weight", a, b}, "other than an embedding");
  expect_refused({"lm_head.weight", a, b},
                 "the adapter of lm_head.weight must belong to a matrix of the model");
  expect_refused({"model.norm.weight", a, b}, "must belong to a matrix of the model");
  expect_refused({"model.layers.0.mlp.up_proj.weight", a, at::ones({96, 3})},
                 "must be of the shapes [rank, 64] and [96, rank], but is of [2, 64] and [96, 3]");
  expect_refused({"model.layers.0.mlp.up_proj.weight", at::ones({2, 63}), b},
                 "but is of [2, 63] and [96, 2]");
}

}  // namespace
}  // namespace fsdp::gguf
