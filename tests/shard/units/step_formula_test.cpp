// The formula of a step against the engine's counters.

#include "shard/units/step_formula.h"

#include <gtest/gtest.h>

#include "shard/engine/engine_sizes.h"
#include "support/layout_under_test.h"
#include "support/sharded_run.h"

namespace fsdp::shard {
namespace {

struct FormulaCase {
  std::string name;
  std::function<void(ShardOptions&, const std::string& model)> change;
};

/// A pattern of small parameters.
std::string small_parts(const std::string& model) {
  return model == "chain" ? "bias" : model == "llama" ? "*norm*" : "*ln_*";
}

std::ostream& operator<<(std::ostream& out, const FormulaCase& c) { return out << c.name; }

struct FormulaSetting {
  std::string model = "chain";  ///< chain, chain_of_sizes, llama, gpt2
  int world = 2;
  StepFormulaOptions step = {};
};

/// One optimizer step without the update.
void run_step(nn::Stage& model, Engine& engine, const FormulaSetting& setting) {
  engine.zero_gradients();
  for (int64_t micro = 0; micro < setting.step.micro_batches; ++micro) {
    bool last = micro + 1 == setting.step.micro_batches;
    engine.set_requires_gradient_sync(!setting.step.no_sync || last);
    engine.set_requires_all_reduce(last);
    bool chain = setting.model.starts_with("chain");
    (chain ? model.forward(at::ones({2, 32})).sum()
           : testing::loss_of(model, testing::token_rows(0, 2, 9, 17)))
        .backward();
  }
}

std::shared_ptr<nn::Stage> make_model(const std::string& name) {
  if (name == "chain") return std::make_shared<testing::ChainStage>(5, 32);
  return testing::make_initialized(testing::tiny_options(name));
}

int64_t largest_unit(const Engine& engine) {
  int64_t bytes = 0;
  for (const auto& unit : engine.units()) {
    const UnitStorage& storage = unit->storage();
    // Where a unit is not gathered in place, whether a gather is under way is a matter of timing too.
    int64_t gathering = storage.layout().gathers_in_place() ? 0 : storage.gathered_bytes();
    bytes = std::max({bytes, storage.unsharded_bytes() + gathering, storage.gradients().nbytes()});
  }
  return bytes;
}

/// Traffic to the byte, memory within the bound and no further from it than one unit.
void expect_formula_holds(const FormulaSetting& setting, const ShardOptions& options) {
  comm::run_ranks_as_threads(setting.world, [&](comm::Communicator& communicator) {
    auto model = make_model(setting.model);
    auto engine = testing::shard_under_test(*model, options, testing::borrowed(communicator));
    for (int step = 0; step < 3; ++step) {  // prefetch knows the order from the second on
      engine->reset_counters();
      run_step(*model, *engine, setting);
      StepFormula formula = step_formula(*engine, setting.step);
      Traffic measured = engine->traffic();
      EXPECT_EQ(measured.all_gathers, formula.traffic.all_gathers) << step;
      EXPECT_EQ(measured.all_gather_bytes, formula.traffic.all_gather_bytes) << step;
      EXPECT_EQ(measured.reduce_scatters, formula.traffic.reduce_scatters) << step;
      EXPECT_EQ(measured.reduce_scatter_bytes, formula.traffic.reduce_scatter_bytes) << step;
      EXPECT_EQ(measured.all_reduces, formula.traffic.all_reduces) << step;
      EXPECT_EQ(measured.all_reduce_bytes, formula.traffic.all_reduce_bytes) << step;
      int64_t peak = engine->unsharded_memory().peak;
      EXPECT_LE(peak, formula.unsharded_bytes) << step;
      // How many of unlimited gathers are there together is a matter of timing, and so is which of two queues
      // is ahead.
      if (options.limit_all_gathers) {
        const int64_t queues = options.reduce_scatter_group ? 2 : 1;
        EXPECT_GE(peak, formula.unsharded_bytes - queues * largest_unit(*engine)) << step;
      }
      EXPECT_EQ(formula.shard_bytes, engine->shard_bytes());
    }
  });
}

class StepFormulaOf : public ::testing::TestWithParam<FormulaCase> {
 protected:
  ShardOptions options_for(const std::string& model) const {
    ShardOptions options;
    options.min_num_params = model == "chain" ? 1 : 200;
    GetParam().change(options, model);
    return options;
  }
};

TEST_P(StepFormulaOf, AStepHoldsToTheByteAtAnyWorldSize) {
  for (const char* model : {"chain", "llama", "gpt2"}) {
    for (int world : {1, 2, 3, 4}) {
      SCOPED_TRACE(concat(model, ", ", world, " ranks"));
      expect_formula_holds({.model = model, .world = world}, options_for(model));
    }
  }
}

TEST_P(StepFormulaOf, AStepOfSeveralMicroBatchesHoldsToTheByte) {
  for (bool no_sync : {false, true}) {
    for (const char* model : {"chain", "llama"}) {
      SCOPED_TRACE(concat(model, no_sync ? ", no_sync" : ""));
      expect_formula_holds({.model = model, .step = {.micro_batches = 3, .no_sync = no_sync}},
                           options_for(model));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Options, StepFormulaOf,
                         ::testing::Values(FormulaCase{"defaults", [](ShardOptions&, const std::string&) {}},
                                           FormulaCase{"no_prefetch",
                                                       [](ShardOptions& o, const std::string&) {
                                                         o.forward_prefetch = "none";
                                                         o.backward_prefetch = "none";
                                                       }},
                                           FormulaCase{"explicit_and_post",
                                                       [](ShardOptions& o, const std::string&) {
                                                         o.forward_prefetch = "explicit";
                                                         o.backward_prefetch = "post";
                                                       }},
                                           FormulaCase{"unlimited_gathers",
                                                       [](ShardOptions& o, const std::string&) {
                                                         o.limit_all_gathers = false;
                                                       }},
                                           FormulaCase{"no_reshard",
                                                       [](ShardOptions& o, const std::string&) {
                                                         o.reshard_after_forward = false;
                                                       }},
                                           FormulaCase{"no_reshard_without_prefetch",
                                                       [](ShardOptions& o, const std::string&) {
                                                         o.reshard_after_forward = false;
                                                         o.backward_prefetch = "none";
                                                       }},
                                           FormulaCase{"reshard_root",
                                                       [](ShardOptions& o, const std::string&) {
                                                         o.reshard_root_after_forward = true;
                                                       }},
                                           FormulaCase{"reshard_last",
                                                       [](ShardOptions& o, const std::string&) {
                                                         o.reshard_last_after_forward = true;
                                                       }},
                                           FormulaCase{"reshard_everything",
                                                       [](ShardOptions& o, const std::string&) {
                                                         o.reshard_root_after_forward =
                                                             o.reshard_last_after_forward = true;
                                                       }},
                                           FormulaCase{"some_units_stay",
                                                       [](ShardOptions& o, const std::string&) {
                                                         o.keep_after_forward = {"*1*"};
                                                       }},
                                           FormulaCase{"reduce_scatter_group",
                                                       [](ShardOptions& o, const std::string&) {
                                                         o.reduce_scatter_group = true;
                                                       }},
                                           FormulaCase{"reduce_scatter_group_and_post",
                                                       [](ShardOptions& o, const std::string&) {
                                                         o.reduce_scatter_group = true;
                                                         o.backward_prefetch = "post";
                                                       }},
                                           FormulaCase{"shard_grad_op",
                                                       [](ShardOptions& o, const std::string&) {
                                                         o.strategy = "shard_grad_op";
                                                       }},
                                           FormulaCase{"no_shard",
                                                       [](ShardOptions& o,
                                                          const std::string&) { o.strategy = "no_shard"; }},
                                           FormulaCase{"no_shard_bf16",
                                                       [](ShardOptions& o, const std::string&) {
                                                         o.strategy = "no_shard";
                                                         o.mixed_precision.param_dtype = "bfloat16";
                                                       }},
                                           FormulaCase{"replicated",
                                                       [](ShardOptions& o, const std::string& model) {
                                                         o.replicated_parameters = {small_parts(model)};
                                                       }},
                                           FormulaCase{
                                               "bf16",
                                               [](ShardOptions& o, const std::string&) {
                                                 o.mixed_precision.param_dtype =
                                                     o.mixed_precision.reduce_dtype = "bfloat16";
                                               }},
                                           FormulaCase{"bf16_with_fp32_sums",
                                                       [](ShardOptions& o, const std::string& model) {
                                                         o.mixed_precision.param_dtype = "bfloat16";
                                                         o.mixed_precision.keep_float32 = {
                                                             small_parts(model)};
                                                       }},
                                           FormulaCase{
                                               "int8",
                                               [](ShardOptions& o, const std::string&) {
                                                 o.gather_dtype = o.reduce_dtype = "int8";
                                                 o.quantize_links = "all";
                                               }},
                                           FormulaCase{"int4_of_bf16_with_error_feedback",
                                                       [](ShardOptions& o, const std::string& model) {
                                                         o.gather_dtype = o.reduce_dtype = "int4";
                                                         o.quantize_links = "all";
                                                         o.error_feedback = true;
                                                         o.mixed_precision.param_dtype = "bfloat16";
                                                         o.mixed_precision.keep_float32 = {
                                                             small_parts(model)};
                                                       }},
                                           FormulaCase{"int8_without_shards",
                                                       [](ShardOptions& o, const std::string&) {
                                                         o.strategy = "no_shard";
                                                         o.reduce_dtype = "int8";
                                                         o.quantize_links = "all";
                                                       }},
                                           FormulaCase{"offload",
                                                       [](ShardOptions& o,
                                                          const std::string&) { o.cpu_offload = true; }}),
                         [](const auto& info) { return info.param.name; });

TEST(StepFormula, GivesTheBuffersOfTheCommonEstimate) {
  comm::run_ranks_as_threads(4, [](comm::Communicator& communicator) {
    testing::ChainStage chain(3, 8);  // units of 64 elements
    ShardOptions options;
    options.min_num_params = 1;
    auto engine = testing::shard_under_test(chain, options, testing::borrowed(communicator));
    const int64_t unit = 64 * 4;
    EXPECT_EQ(step_formula(*engine).separate_buffers_bytes, 2 * unit + 2 * unit / 4 + 2 * unit);
  });
}

TEST(StepFormula, IsKnownBeforeTheFirstStep) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    testing::ChainStage chain(3, 8);
    ShardOptions options;
    options.min_num_params = 1;
    auto engine = testing::shard_under_test(chain, options, testing::borrowed(communicator));
    StepFormula before = step_formula(*engine);
    EXPECT_EQ(before.forward_all_gathers, 4);
    EXPECT_EQ(before.backward_all_gathers, 2);  // neither the root nor the last unit
    EXPECT_EQ(before.traffic.reduce_scatters, 4);
    // Of the root, and three units' buffers; the other layout gathers into a fourth.
    EXPECT_EQ(before.unsharded_bytes, 2 * 8 * 4 + (testing::flat_is_under_test() ? 3 : 4) * 64 * 4);
  });
}

}  // namespace
}  // namespace fsdp::shard
