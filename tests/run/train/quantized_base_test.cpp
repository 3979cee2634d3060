// LoRA beside weights in 4 or 8 bits (QLoRA): whole runs.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "comm/api/mesh.h"
#include "comm/threads/thread_communicator.h"
#include "model/kernels/quantized.h"
#include "model/nn/decoder.h"
#include "model/nn/initialize.h"
#include "model/nn/layers.h"
#include "run/train/run_parts.h"
#include "shard/engine/engine_sizes.h"
#include "support/mesh_runs.h"
#include "support/safetensors_files.h"

namespace fsdp::train {
namespace {

using kernels::Quantization;

class QuantizedBaseTest : public MeshRuns {
 protected:
  QuantizedBaseTest() {
    config_.checkpoint.save_at_end = false;
    config_.lora.rank = 4;
    config_.lora.quantize = "nf4";
  }

  /// The weights that a run begins with, those of linear layers as they come back from so few bits.
  std::filesystem::path rounded_weights(const config::Config& config, Quantization form) const {
    const auto model = nn::make_decoder(config.model);
    nn::initialize_parameters(*model, config.model, static_cast<uint64_t>(config.run.seed));
    testing::NamedTensors tensors;
    for (const auto& item : model->named_parameters())
      tensors.emplace_back(item.key(), item.value().detach());
    for (const auto& item : model->named_modules("", /*include_self=*/false)) {
      const auto* linear = dynamic_cast<const nn::Linear*>(item.value().get());
      if (linear == nullptr) continue;
      const at::NoGradGuard no_grad;
      at::Tensor weight = linear->is_transposed() ? linear->weight().t() : linear->weight();
      const kernels::QuantizedWeight few{kernels::quantize(weight, form), weight.size(0), weight.size(1),
                                         form};
      weight.copy_(kernels::dequantize(few, 0, weight.size(0), at::kFloat));
    }
    testing::write_safetensors(folder_ / "rounded.safetensors", tensors);
    return folder_ / "rounded.safetensors";
  }

  void expect_that_bits_train_as_their_numbers(Quantization form, int ranks) {
    config_.lora.quantize = util::name_of(form);
    train(ranks, on({.data = ranks}, "bits"));
    config::Config config = on({.data = ranks}, "numbers");
    config.lora.quantize = "none";
    config.model.init_from = rounded_weights(config, form);
    train(ranks, config);
    expect_near("loss", 1e-6, "numbers", "bits");
    expect_near("grad_norm", 1e-5, "numbers", "bits");
  }
};

TEST_F(QuantizedBaseTest, TrainsAsWithTheNumbersThatItsBitsStandFor) {
  expect_that_bits_train_as_their_numbers(Quantization::kNf4, 2);
}

TEST_F(QuantizedBaseTest, OfEightBitsToo) { expect_that_bits_train_as_their_numbers(Quantization::kInt8, 1); }

TEST_F(QuantizedBaseTest, OfTransposedLayersToo) {
  config_.model = testing::tiny_options("gpt2");
  config_.model.initializer_range = 0.1;
  expect_that_bits_train_as_their_numbers(Quantization::kNf4, 2);
}

TEST_F(QuantizedBaseTest, CountsWeightsAndNotTheirBytes) {
  std::vector<int64_t> counts;
  for (const char* form : {"none", "nf4", "int8"}) {
    config_.lora.quantize = form;
    comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
      const comm::Mesh mesh(config_.mesh, testing::borrowed(communicator));
      const ShardedModel parts = build_sharded_model(config_, mesh, nullptr);
      if (communicator.rank() == 0) counts.push_back(shard::parameter_count(*parts.engine, *parts.model));
    });
  }
  EXPECT_EQ(counts[1], counts[0]);
  EXPECT_EQ(counts[2], counts[0]);
}

TEST_F(QuantizedBaseTest, HasTheSameBitsOnAnyNumberOfRanks) {
  train(1, on({.data = 1}, "one"));
  for (int ranks : {2, 4}) {
    train(ranks, on({.data = ranks}, "cut"));
    expect_near("loss", 1e-6);
    std::filesystem::remove_all(folder_ / "cut");
  }
  config::Config config = on({.data = 2}, "cut");
  config.fsdp.layout = "per_parameter";
  config.fsdp.min_num_params = 1'000'000;  // all in the root
  train(2, config);
  expect_near("loss", 1e-6);
}

TEST_F(QuantizedBaseTest, GathersBytes) {
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    const comm::Mesh mesh({.data = 2}, testing::borrowed(communicator));
    const ShardedModel model = build_sharded_model(config_, mesh, nullptr);
    int64_t of_bytes = 0;
    for (const auto& unit : model.engine->units()) {
      const bool has_layers = unit->name().starts_with("model.layers.");
      EXPECT_EQ(unit->storage().source().scalar_type(), has_layers ? at::kByte : at::kFloat) << unit->name();
      of_bytes += has_layers ? 1 : 0;
    }
    EXPECT_EQ(of_bytes, config_.model.num_hidden_layers);
  });
}

}  // namespace
}  // namespace fsdp::train
