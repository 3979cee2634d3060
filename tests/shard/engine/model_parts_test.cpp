#include "shard/engine/model_parts.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/threads/thread_communicator.h"
#include "model/nn/decoder.h"
#include "model/nn/loss.h"
#include "shard/engine/fully_shard.h"
#include "shard/spmd/spmd_fully_shard.h"
#include "shard/state/grad_norm.h"
#include "shard/state/state_dict.h"
#include "support/forwarding_communicator.h"
#include "support/layout_under_test.h"
#include "support/tiny_models.h"

namespace fsdp::shard {
namespace {

nn::ModelOptions options_of(const std::string& architecture) {
  nn::ModelOptions options = testing::tiny_options(architecture);
  options.vocab_size = 23;
  options.hidden_size = 16;
  options.intermediate_size = 24;
  options.num_attention_heads = 4;
  options.num_key_value_heads = architecture == "llama" ? 2 : 4;
  options.tie_word_embeddings = architecture == "gpt2";
  return options;
}

struct Sharded {
  std::shared_ptr<nn::Stage> model;
  std::shared_ptr<Engine> engine;
};

Sharded sharded(const nn::ModelOptions& options, const comm::Mesh& mesh, ShardOptions shard = {}) {
  auto model = testing::make_initialized(options);
  shard.min_num_params = 1000;
  shard.parts = nn::parallelize_decoder(*model, options, {}, mesh.model());
  auto engine = testing::shard_under_test(*model, shard, mesh);
  return {model, engine};
}

/// On each of `ranks` ranks as threads.
void on(int ranks, const std::function<void(std::shared_ptr<comm::Communicator>)>& body) {
  comm::run_ranks_as_threads(
      ranks, [&](comm::Communicator& communicator) { body(testing::borrowed(communicator)); });
}

TEST(ModelParts, FullStateDictsHaveWholeParameters) {
  for (const char* architecture : {"llama", "gpt2"}) {
    const nn::ModelOptions options = options_of(architecture);
    std::map<std::string, at::Tensor> expected;
    for (const auto& item : testing::make_initialized(options)->named_parameters())
      expected[item.key()] = item.value();
    on(4, [&](const std::shared_ptr<comm::Communicator>& world) {
      const comm::Mesh mesh({.data = 1, .model = 4}, world);
      auto [model, engine] = sharded(options, mesh);
      for (const bool rank0_only : {false, true}) {
        const FullStateDict state = full_state_dict(*engine, {.rank0_only = rank0_only, .to_host = true});
        if (rank0_only && world->rank() != 0) {
          EXPECT_TRUE(state.empty());
          continue;
        }
        size_t parameters = 0;
        for (const auto& [name, tensor] : state) {
          const auto whole = expected.find(name);
          if (whole == expected.end()) continue;  // another name of a tied one
          EXPECT_TRUE(tensor.equal(whole->second)) << name;
          ++parameters;
        }
        EXPECT_EQ(parameters, expected.size());
      }
    });
  }
}

TEST(ModelParts, FullStateDictsLoadIntoParts) {
  const nn::ModelOptions options = options_of("llama");
  on(4, [&](const std::shared_ptr<comm::Communicator>& world) {
    const comm::Mesh mesh({.data = -1, .model = 2}, world);
    auto [model, engine] = sharded(options, mesh);
    FullStateDict changed = full_state_dict(*engine);
    for (auto& [name, tensor] : changed) tensor.add_(1);
    load_full_state_dict(*engine, changed);
    const FullStateDict found = full_state_dict(*engine);
    for (size_t i = 0; i < found.size(); ++i)
      EXPECT_TRUE(found[i].tensor.equal(changed[i].tensor)) << found[i].name;
  });
}

TEST(ModelParts, WhatRanksHoldAlikeFormsUnitsOfItsOwn) {
  on(4, [&](const std::shared_ptr<comm::Communicator>& world) {
    const comm::Mesh mesh({.data = 1, .model = 4}, world);
    auto [model, engine] = sharded(options_of("llama"), mesh, {.layout = "flat"});
    std::map<std::string, int> replicas;
    for (const auto& unit : engine->units()) replicas[unit->name()] = unit->groups().replicas();
    EXPECT_EQ(replicas.at("root.summed_over_4_model_ranks"), 4) << "norms";
    EXPECT_EQ(replicas.at("root.summed_over_2_model_ranks"), 2)
        << "two heads of keys and values for four ranks";
    EXPECT_EQ(replicas.at("model.layers.0.mlp"), 1);
    for (const auto& unit : engine->units()) {
      if (unit->name() != "root.summed_over_2_model_ranks") continue;
      EXPECT_EQ(unit->storage().parameters().size(), 6U);
    }
  });
}

TEST(ModelParts, TheGradientNormCountsEachElementOnce) {
  const nn::ModelOptions options = options_of("llama");
  const at::Tensor tokens = testing::token_rows(0, 2, 8, 23);
  const at::Tensor ids = tokens.narrow(1, 0, 8), targets = tokens.narrow(1, 1, 8).contiguous();
  const auto norms_of = [&](nn::Stage& model, Engine& engine) {
    nn::loss_of(model, ids, targets).backward();
    return std::vector<double>{grad_norm(engine, 2), grad_norm(engine, 1),
                               grad_norm(engine, std::numeric_limits<double>::infinity())};
  };
  std::vector<double> expected;
  on(1, [&](const std::shared_ptr<comm::Communicator>& world) {
    auto [model, engine] = sharded(options, comm::Mesh({}, world));
    expected = norms_of(*model, *engine);
  });
  for (const int64_t ranks : {2, 4}) {
    on(4, [&](const std::shared_ptr<comm::Communicator>& world) {
      auto [model, engine] = sharded(options, comm::Mesh({.data = -1, .model = ranks}, world));
      const std::vector<double> found = norms_of(*model, *engine);
      for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-5 * expected[i]) << i;
    });
  }
}

TEST(ModelParts, AreRequiredOnAMeshThatHasAnAxisForThem) {
  on(2, [&](const std::shared_ptr<comm::Communicator>& world) {
    const comm::Mesh mesh({.data = 1, .model = 2}, world);
    for (const bool spmd : {false, true}) {
      const auto model = testing::make_initialized(options_of("llama"));
      try {
        spmd ? spmd_fully_shard(*model, mesh) : fully_shard(*model, {}, mesh);
        ADD_FAILURE() << "expected an error";
      } catch (const util::Error& error) {
        EXPECT_NE(std::string(error.what()).find("expected ShardOptions::parts; found none"),
                  std::string::npos)
            << error.what();
      }
    }
  });
}

TEST(ModelParts, AreThoseOfTheModelThatIsSharded) {
  on(2, [&](const std::shared_ptr<comm::Communicator>& world) {
    const comm::Mesh mesh({.data = 1, .model = 2}, world);
    const nn::ModelOptions options = options_of("llama");
    auto model = testing::make_initialized(options), other = testing::make_initialized(options_of("gpt2"));
    ShardOptions shard;
    shard.parts = nn::parallelize_decoder(*other, options_of("gpt2"), {}, mesh.model());
    try {
      fully_shard(*model, shard, mesh);
      ADD_FAILURE() << "expected an error";
    } catch (const util::Error& error) {
      EXPECT_NE(std::string(error.what()).find("found no part of model.embed_tokens.weight"),
                std::string::npos)
          << error.what();
    }
  });
}

}  // namespace
}  // namespace fsdp::shard
