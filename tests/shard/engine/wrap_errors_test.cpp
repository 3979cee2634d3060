// What is refused, and warned of, in wrapping.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "base/util/error.h"
#include "shard/engine/wrap.h"
#include "shard/units/option_conflicts.h"
#include "shard/wrap_fixtures.h"
#include "support/chain_run.h"
#include "support/fake_collectives.h"
#include "support/log_lines.h"
#include "support/nested_models.h"
#include "support/on_mesh.h"
#include "support/sharded_run.h"

namespace fsdp::shard {
namespace {

using testing::ChainRun;
using testing::every_matrix;
using testing::group;
using ::testing::HasSubstr;
using testing::matrix;
using testing::one_unit;
using testing::OptionsByPath;
using testing::plans_of;
using testing::refusal_of;
using testing::wrap_paths;

testing::Refusal refusal_of_wrapping(const OptionsByPath& wrapped, const ShardOptions& options = one_unit()) {
  testing::ChainStage chain(3, 4);
  return refusal_of([&] { plans_of(chain, options, wrapped); });
}

TEST(WrapErrors, NameTheModuleThatIsNotInTheModel) {
  testing::ChainStage chain(2, 4);
  const auto refused = refusal_of([&] {
    const EnableWrap scope;
    wrap(std::make_shared<testing::MatrixStage>(4, 4, "stranger"));
    plan_units(chain, WrappedModules::added_to(one_unit()));
  });
  EXPECT_EQ(refused.kind, ErrorKind::kUsage);
  EXPECT_EQ(
      refused.text.substr(0, refused.text.find('\n')),
      "wrap(): expected stages inside the root; found a module of type stranger, which is not; register it as "
      "a module of the root or take it out");
}

TEST(WrapErrors, NameTheModuleThatIsWrappedTwice) {
  testing::ChainStage chain(2, 4);
  const auto refused = refusal_of([&] {
    const EnableWrap scope;
    for (int i = 0; i < 2; ++i) wrap_paths(chain, {{"layers.1", {}}});
    plan_units(chain, WrappedModules::added_to(one_unit()));
  });
  EXPECT_THAT(refused.text,
              HasSubstr("wrap(): expected each module once; found \"layers.1\" again; leave one of the "
                        "calls out"));
}

TEST(WrapErrors, OfAFailedCallLeaveTheModulesToTheNext) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    testing::ChainStage chain(2, 4);
    const EnableWrap scope;
    wrap_paths(chain, {{"layers.1", {}}});
    ShardOptions options = one_unit();
    options.wrap_stages = {"unknown"};
    EXPECT_THROW(fully_shard(chain, options, testing::borrowed(communicator)), util::Error);
    EXPECT_EQ(fully_shard(chain, one_unit(), testing::borrowed(communicator))->units().size(), 2);
  });
}

TEST(WrapErrors, NameTheOptionsThatExcludeEachOther) {
  const auto text = [](const UnitOverrides& own, const ShardOptions& options = one_unit()) {
    return refusal_of_wrapping({{"layers.2", own}}, options).text;
  };
  EXPECT_THAT(text({.move_grads_to_cpu = true}),
              HasSubstr("wrap() of \"layers.2\": fsdp.move_grads_to_cpu must be false, because with "
                        "fsdp.cpu_offload = false"));
  EXPECT_THAT(
      text({.strategy = "no_shard", .reshard_after_forward = true}),
      HasSubstr("wrap() of \"layers.2\": fsdp.reshard_after_forward must be false, but is true, and with "
                "fsdp.strategy = no_shard the unit stays gathered from forward to backward; leave it out or "
                "set the unit's strategy to full_shard or hybrid_shard"));
  EXPECT_THAT(text({.keep_low_precision_grads = true}),
              HasSubstr("wrap() of \"layers.2\": mixed_precision.keep_low_precision_grads must be false"));
  EXPECT_THAT(text({.param_dtype = "bfloat16", .reduce_dtype = "float16"}),
              HasSubstr("wrap() of \"layers.2\": mixed_precision.reduce_dtype must be float32 or"));
  ShardOptions buffers = one_unit();
  buffers.mixed_precision.buffer_dtype = "float16";
  EXPECT_THAT(text({.param_dtype = "bfloat16"}, buffers),
              HasSubstr("wrap() of \"layers.2\": mixed_precision.buffer_dtype must be float32 or"));
}

TEST(WrapErrors, NameTheModuleWithoutParameters) {
  auto hollow = group({matrix(2)}, "hollow");
  auto root = group({hollow}, "root");
  const EnableWrap scope;
  wrap(hollow);
  ShardOptions options;
  options.min_num_params = 1;
  const auto refused = refusal_of([&] { plan_units(*root, WrappedModules::added_to(options)); });
  WrappedModules::clear();
  EXPECT_THAT(refused.text,
              HasSubstr("wrap(): expected stages with parameters that no unit inside them holds; found "
                        "\"0\" of type hollow, which has none; leave the call out"));
}

TEST(WrapErrors, AModuleMustHaveHooks) {
  const EnableWrap scope;
  const auto refused = refusal_of([] { wrap(torch::nn::Linear(2, 2)); });
  EXPECT_EQ(refused.kind, ErrorKind::kUsage);
  EXPECT_THAT(refused.text, HasSubstr("wrap(): expected a module whose calls can be hooked; found a plain "));
  EXPECT_THAT(refused.text, HasSubstr("LinearImpl; declare the module as fsdp::nn::Hooked"));
}

TEST(WrapErrors, AScopeWithoutFullyShardIsWarnedOf) {
  const auto lines = testing::log_lines([] {
    const EnableWrap scope;
    const EnableWrap inner;
    wrap(std::make_shared<testing::MatrixStage>(4, 4));
  });
  EXPECT_THAT(
      lines,
      HasSubstr("EnableWrap: expected fully_shard() before the scope ends; found none after 1 calls of "
                "wrap(), which have no effect; call it in the scope"));
}

TEST(WrapErrors, TheUseOfArrivingGradientsNeedsThoseOfAllUnits) {
  comm::run_ranks_as_threads(1, [](comm::Communicator& rank) {
    const auto communicator = testing::on_fake_device(rank);
    ShardOptions options = every_matrix();
    options.cpu_offload = options.move_grads_to_cpu = true;
    ChainRun run(*communicator, options, 3, {}, {}, {{"layers.1", {.cpu_offload = false}}});
    const auto refused = refusal_of([&] { const GradientUse use(*run.engine, [](size_t) {}); });
    EXPECT_THAT(refused.text, HasSubstr("fsdp.move_grads_to_cpu = false in unit layers.1"));
  });
}

// ---- what the options of the model allow beside wrapped modules

TEST(WrapConflicts, OptionsOfTheModelMayServeWrappedUnitsAlone) {
  testing::MatrixStage stage(2, 2);
  const auto conflicts = [&](const ShardOptions& options) { return find_option_conflicts(options).size(); };
  ShardOptions options;
  options.strategy = "no_shard";
  options.forward_prefetch = "explicit";
  options.reshard_last_after_forward = true;
  options.reduce_scatter_group = true;
  EXPECT_EQ(conflicts(options), 3);
  options.wrapped = {{&stage, {.strategy = "full_shard"}}};
  EXPECT_EQ(conflicts(options), 0);
  ShardOptions types;
  types.mixed_precision.keep_float32 = {"*bias"};
  EXPECT_EQ(conflicts(types), 1);
  types.wrapped = {{&stage, {.param_dtype = "bfloat16"}}};
  EXPECT_EQ(conflicts(types), 0);
  ShardOptions replicas;
  replicas.replica_check_interval = 5;
  EXPECT_EQ(conflicts(replicas), 1);
  replicas.wrapped = {{&stage, {.strategy = "hybrid_shard"}}};
  EXPECT_EQ(conflicts(replicas), 0);
}

}  // namespace
}  // namespace fsdp::shard
