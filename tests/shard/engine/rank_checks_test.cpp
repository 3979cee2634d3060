#include "shard/engine/rank_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/util/error.h"
#include "shard/engine/fully_shard.h"
#include "support/counting_communicator.h"
#include "support/layout_under_test.h"
#include "support/segments_in_rows.h"
#include "support/sharded_run.h"

namespace fsdp::shard {
namespace {

using ::testing::HasSubstr;

/// By rank of a run on the mesh: the error after `spoil`, or empty.
std::string complaint(const comm::MeshOptions& mesh, const ShardOptions& options,
                      const std::function<void(Engine& engine, int rank)>& spoil) {
  int world = static_cast<int>(mesh.dcn * mesh.data);
  std::vector<std::string> told(static_cast<size_t>(world));
  comm::run_ranks_as_threads(world, [&](comm::Communicator& communicator) {
    testing::ChainStage chain(3, 4);
    comm::Mesh ranks(mesh, testing::borrowed(communicator));
    auto engine = testing::shard_under_test(chain, options, ranks);
    at::NoGradGuard no_grad;
    spoil(*engine, communicator.rank());
    try {
      require_equal_replicas(*engine, "before the first step");
    } catch (const comm::AgreedError& error) {
      told[static_cast<size_t>(communicator.rank())] = error.what();
    }
  });
  for (const std::string& text : told) EXPECT_EQ(text, told[0]);
  return told[0];
}

ShardOptions check_options_of(const char* strategy) {
  ShardOptions options;
  options.strategy = strategy;
  options.min_num_params = 1;
  return options;
}

/// Changes the last element that the rank has of the parameter by one bit.
void change(Engine& engine, const std::string& name) {
  for (const Segment& segment : engine.segments()) {
    if (segment.name != name) continue;
    ASSERT_GT(segment.numel(), 0);
    at::Tensor shard = engine.units()[segment.unit]->storage().shard();
    auto* bits = static_cast<uint32_t*>(shard.data_ptr());
    bits[segment.shard_offset + segment.numel() - 1] ^= 1;
  }
}

TEST(ReplicaCheck, AcceptsEqualReplicas) {
  for (const char* strategy : {"hybrid_shard", "hybrid_shard_zero2", "no_shard", "full_shard"}) {
    for (const comm::MeshOptions& mesh : {comm::MeshOptions{.dcn = 2, .data = 2},
                                          {.dcn = 3, .data = 1},
                                          {.dcn = 1, .data = 3},
                                          {.dcn = 1, .data = 1}}) {
      EXPECT_EQ(complaint(mesh, check_options_of(strategy), [](Engine&, int) {}), "") << strategy;
    }
  }
}

TEST(ReplicaCheck, NamesTheParameterAndTheRank) {
  std::string text =
      complaint({.dcn = 2, .data = 2}, check_options_of("hybrid_shard"), [](Engine& engine, int rank) {
        if (rank == 3) change(engine, "layers.1.weight");
      });
  EXPECT_THAT(text, HasSubstr("before the first step: expected the same values of parameter "
                              "layers.1.weight on ranks 1 and 3"));
  EXPECT_THAT(text, HasSubstr("found different ones on rank 3"));
}

TEST(ReplicaCheck, NamesTheFirstParameterOfAllRanks) {
  std::string text =
      complaint({.dcn = 2, .data = 2}, check_options_of("hybrid_shard"), [](Engine& engine, int rank) {
        if (rank == 2) change(engine, "layers.2.weight");
        if (rank == 3) change(engine, "layers.0.weight");
      });
  EXPECT_THAT(text, HasSubstr("layers.0.weight on ranks 1 and 3"));
}

// The middle rank of three has none of the first parameters' beginnings: other numbers of segments.
TEST(ReplicaCheck, NamesTheParameterWhereRanksHaveOtherNumbersOfParts) {
  if (!testing::flat_is_under_test()) GTEST_SKIP() << "of the flat layout";
  for (int shard : {0, 1, 2}) {
    std::string text =
        complaint({.dcn = 2, .data = 3}, check_options_of("hybrid_shard"), [&](Engine& engine, int rank) {
          testing::cut_segments_into_rows(engine);
          if (rank == 3 + shard) change(engine, "layers.1.weight");
        });
    EXPECT_THAT(text, HasSubstr(concat("layers.1.weight on ranks ", shard, " and ", 3 + shard)));
  }
}

TEST(ReplicaCheck, LooksAtWhatEveryRankHoldsWhole) {
  for (int spoiled : {0, 1, 2}) {
    std::string text =
        complaint({.dcn = 1, .data = 3}, check_options_of("no_shard"), [&](Engine& engine, int rank) {
          if (rank == spoiled) change(engine, "bias");
        });
    EXPECT_THAT(text, HasSubstr(concat("bias on ranks 0 and ", spoiled == 0 ? 1 : spoiled)));
  }
  for (const char* strategy : {"full_shard", "hybrid_shard"}) {
    ShardOptions options = check_options_of(strategy);
    options.replicated_parameters = {"layers.2.*"};
    std::string text = complaint({.dcn = 2, .data = 2}, options, [](Engine& engine, int rank) {
      if (rank == 1) change(engine, "layers.2.weight");
    });
    EXPECT_THAT(text, HasSubstr("layers.2.weight on ranks 0 and 1")) << strategy;
  }
}

TEST(ReplicaCheck, DoesNotLookAtPaddingAndCommunicatesOnlyWhereThereAreReplicas) {
  comm::run_ranks_as_threads(6, [](comm::Communicator& inner) {
    testing::CountingCommunicator calls(inner);
    testing::ChainStage chain(1, 4);
    auto engine = fully_shard(chain, check_options_of("hybrid_shard"),
                              comm::Mesh({.dcn = 2, .data = 3}, testing::borrowed(calls)));
    // 16 elements over 3 ranks: the last has two of padding.
    if (inner.rank() == 2) engine->units()[1]->storage().shard().narrow(0, 5, 1).fill_(7);
    require_equal_replicas(*engine, "now");
    EXPECT_EQ(calls.count("all_gather"), 2);
    auto cut = fully_shard(*std::make_shared<testing::ChainStage>(1, 4), check_options_of("full_shard"),
                           testing::borrowed(calls));
    calls.clear();
    require_equal_replicas(*cut, "now");
    EXPECT_TRUE(calls.calls().empty());
  });
}

TEST(OrderCheck, FindsTheFirstRankThatDiffers) {
  comm::run_ranks_as_threads(4, [](comm::Communicator& world) {
    EXPECT_FALSE(check_across_ranks(world, 3).has_value());
    auto difference = check_across_ranks(world, world.rank() < 2 ? 5 : 6);
    ASSERT_TRUE(difference.has_value());
    EXPECT_EQ(difference->rank, 2);
    EXPECT_EQ(difference->theirs, 6u);
    EXPECT_EQ(difference->first_ranks, 5u);
  });
}

}  // namespace
}  // namespace fsdp::shard
