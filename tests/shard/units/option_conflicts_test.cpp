#include "shard/units/option_conflicts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "shard/engine/wrap_policy.h"

namespace fsdp::shard {
namespace {

using ::testing::HasSubstr;

using Fields = std::vector<std::string>;

struct ConflictCase {
  const char* name;
  void (*change)(ShardOptions& options);
  Fields fields;
  std::vector<std::string> words;  ///< of the message, beside the fields
};

bool wrap_nothing(const StageInfo&) { return false; }

/// Only the address counts: nothing here looks into the stage.
const nn::Hookable* some_stage() {
  static const int there = 0;
  return reinterpret_cast<const nn::Hookable*>(&there);
}

const std::vector<ConflictCase>& single_conflicts() {
  static const std::vector<ConflictCase> cases = {
      {"ReplicaCheckWithoutReplicas",
       [](ShardOptions& o) { o.replica_check_interval = 10; },
       {"fsdp.replica_check_interval", "fsdp.strategy"},
       {"but is 10", "fsdp.strategy = full_shard", "hybrid_shard"}},
      {"GlobalOptimizerWithoutSlices",
       [](ShardOptions& o) { o.hybrid_optimizer = "global"; },
       {"fsdp.hybrid_optimizer", "fsdp.strategy"},
       {"but is global", "fsdp.strategy = full_shard", "hybrid_shard"}},
      {"ReplicaCheckWithAGlobalOptimizer",
       [](ShardOptions& o) {
         o.strategy = "hybrid_shard";
         o.hybrid_optimizer = "global";
         o.replica_check_interval = 10;
       },
       {"fsdp.replica_check_interval", "fsdp.strategy"},
       {"but is 10", "fsdp.hybrid_optimizer = global", "set fsdp.hybrid_optimizer = replicated"}},
      {"StorageOfAnotherLowType",
       [](ShardOptions& o) {
         o.param_storage = "float16";
         o.mixed_precision.param_dtype = "bfloat16";
       },
       {"fsdp.param_storage", "mixed_precision.param_dtype"},
       {"but is float16", "mixed_precision.param_dtype = bfloat16", "float32 or"}},
      {"ReplicaCheckInterval",
       [](ShardOptions& o) { o.replica_check_interval = -1; },
       {"fsdp.replica_check_interval"},
       {"but is -1", "at least 0"}},
      {"ReshardRootOfHybridZero2",
       [](ShardOptions& o) {
         o.strategy = "hybrid_shard_zero2";
         o.reshard_root_after_forward = true;
       },
       {"fsdp.reshard_root_after_forward", "fsdp.strategy"},
       {"but is true", "fsdp.strategy = hybrid_shard_zero2", "set fsdp.strategy = hybrid_shard and"}},
      {"NegativeThreshold",
       [](ShardOptions& o) { o.min_num_params = -1; },
       {"fsdp.min_num_params"},
       {"but is -1"}},
      {"NegativePredivide",
       [](ShardOptions& o) { o.gradient_predivide_factor = -0.5; },
       {"fsdp.gradient_predivide_factor"},
       {"but is -0.5"}},
      {"InfinitePredivide",
       [](ShardOptions& o) { o.gradient_predivide_factor = std::numeric_limits<double>::infinity(); },
       {"fsdp.gradient_predivide_factor"},
       {"but is inf"}},
      {"PredivideThatIsNoNumber",
       [](ShardOptions& o) { o.gradient_predivide_factor = std::nan(""); },
       {"fsdp.gradient_predivide_factor"},
       {"but is nan"}},
      {"GradientsInHostMemoryWithoutWeights",
       [](ShardOptions& o) { o.move_grads_to_cpu = true; },
       {"fsdp.move_grads_to_cpu", "fsdp.cpu_offload"},
       {"but is true", "fsdp.cpu_offload = false"}},
      {"NoLimitWithoutPrefetch",
       [](ShardOptions& o) {
         o.limit_all_gathers = false;
         o.forward_prefetch = "none";
       },
       {"fsdp.limit_all_gathers", "fsdp.forward_prefetch"},
       {"but is false", "fsdp.forward_prefetch = none"}},
      {"LowPrecisionGradsOfAFloat32Reduction",
       [](ShardOptions& o) {
         o.mixed_precision.param_dtype = "bfloat16";
         o.mixed_precision.keep_low_precision_grads = true;
       },
       {"mixed_precision.keep_low_precision_grads", "mixed_precision.reduce_dtype"},
       {"but is true", "mixed_precision.reduce_dtype = float32"}},
      {"KeepFloat32OfFloat32",
       [](ShardOptions& o) {
         o.mixed_precision.keep_float32 = {"*norm*", "*.bias"};
       },
       {"mixed_precision.keep_float32", "mixed_precision.param_dtype", "mixed_precision.reduce_dtype",
        "fsdp.param_storage"},
       {"[\"*norm*\", \"*.bias\"]", "mixed_precision.param_dtype = float32",
        "mixed_precision.reduce_dtype = float32"}},
      {"TwoLowTypes",
       [](ShardOptions& o) {
         o.mixed_precision.param_dtype = "bfloat16";
         o.mixed_precision.reduce_dtype = "float16";
       },
       {"mixed_precision.reduce_dtype", "mixed_precision.param_dtype"},
       {"but is float16", "mixed_precision.param_dtype = bfloat16"}},
      {"BuffersOfTheOtherLowType",
       [](ShardOptions& o) {
         o.mixed_precision.param_dtype = "float16";
         o.mixed_precision.buffer_dtype = "bfloat16";
       },
       {"mixed_precision.buffer_dtype", "mixed_precision.param_dtype"},
       {"but is bfloat16", "mixed_precision.param_dtype = float16"}},
      {"ReshardRootOfShardGradOp",
       [](ShardOptions& o) {
         o.strategy = "shard_grad_op";
         o.reshard_root_after_forward = true;
       },
       {"fsdp.reshard_root_after_forward", "fsdp.strategy"},
       {"but is true", "fsdp.strategy = shard_grad_op"}},
      {"ReshardLastWithoutResharding",
       [](ShardOptions& o) {
         o.reshard_after_forward = false;
         o.reshard_last_after_forward = true;
       },
       {"fsdp.reshard_last_after_forward", "fsdp.reshard_after_forward"},
       {"but is true", "fsdp.reshard_after_forward = false"}},
      {"KeepSomeOfNoShard",
       [](ShardOptions& o) {
         o.strategy = "no_shard";
         o.reshard_after_forward = false;
         o.keep_after_forward = {"model.layers.*"};
       },
       {"fsdp.keep_after_forward", "fsdp.strategy", "fsdp.reshard_after_forward"},
       {"[\"model.layers.*\"]", "fsdp.strategy = no_shard", "fsdp.reshard_after_forward = false"}},
      {"RootBothKeptAndFreed",
       [](ShardOptions& o) {
         o.reshard_root_after_forward = true;
         o.keep_after_forward = {"layers.0", "root"};
       },
       {"fsdp.keep_after_forward", "fsdp.reshard_root_after_forward"},
       {"[\"layers.0\", \"root\"]", "fsdp.reshard_root_after_forward = true"}},
      {"ExplicitPrefetchOfNoShard",
       [](ShardOptions& o) {
         o.strategy = "no_shard";
         o.forward_prefetch = "explicit";
       },
       {"fsdp.forward_prefetch", "fsdp.strategy"},
       {"\"explicit\"", "fsdp.strategy = no_shard"}},
      {"NoLimitOfNoShard",
       [](ShardOptions& o) {
         o.strategy = "no_shard";
         o.limit_all_gathers = false;
       },
       {"fsdp.limit_all_gathers", "fsdp.strategy"},
       {"but is false", "fsdp.strategy = no_shard"}},
      {"ReplicatedInNoShard",
       [](ShardOptions& o) {
         o.strategy = "no_shard";
         o.replicated_parameters = {"*.bias"};
       },
       {"fsdp.replicated_parameters", "fsdp.strategy"},
       {"[\"*.bias\"]", "fsdp.strategy = no_shard"}},
      {"UnitsAndPolicy",
       [](ShardOptions& o) {
         o.units = {some_stage()};
         o.wrap_policy = wrap_nothing;
       },
       {"units", "wrap_policy"},
       {"except the root (1)"}},
      {"UnitsAndWrapStages",
       [](ShardOptions& o) {
         o.units = {some_stage(), some_stage()};
         o.wrap_stages = {"block"};
       },
       {"units", "fsdp.wrap_stages"},
       {"except the root (2)", "[\"block\"]"}},
      {"UnitsAndLeafStages",
       [](ShardOptions& o) {
         o.units = {some_stage()};
         o.leaf_stages = {"block"};
       },
       {"units", "fsdp.leaf_stages"},
       {"except the root (1)", "[\"block\"]"}},
      {"PolicyAndWrapStages",
       [](ShardOptions& o) {
         o.wrap_policy = wrap_nothing;
         o.wrap_stages = {"block"};
       },
       {"wrap_policy", "fsdp.wrap_stages"},
       {"[\"block\"]", "any_of"}},
      {"TypeBothWrappedAndExcluded",
       [](ShardOptions& o) {
         o.wrap_stages = {"block", "attention"};
       },  // excluded unless told otherwise
       {"fsdp.wrap_stages", "fsdp.exclude_stages"},
       {"fsdp.exclude_stages = [\"attention\"]", "take \"attention\" out of one of the two"}},
      {"DimensionOfAFlatUnit",
       [](ShardOptions& o) { o.shard_dimension = "first"; },
       {"fsdp.shard_dimension", "fsdp.layout"},
       {"\"first\"", "per_parameter"}},
      {"OneDimensionOfAFlatUnit",
       [](ShardOptions& o) { o.shard_1d_parameters = true; },
       {"fsdp.shard_1d_parameters", "fsdp.layout"},
       {"true", "per_parameter"}},
      {"DimensionPolicyOfAFlatUnit",
       [](ShardOptions& o) { o.dimension_policy = shard_dimension_policy("first", true); },
       {"dimension_policy", "fsdp.layout"},
       {"but is given", "per_parameter"}},
  };
  return cases;
}

TEST(OptionConflicts, FindsNoneInTheDefaults) { EXPECT_TRUE(find_option_conflicts(ShardOptions{}).empty()); }

TEST(OptionConflicts, FindsEachConflictAndNamesItsFieldsAndTheirValues) {
  for (const ConflictCase& each : single_conflicts()) {
    SCOPED_TRACE(each.name);
    ShardOptions options;
    each.change(options);
    auto found = find_option_conflicts(options);
    EXPECT_EQ(found.size(), 1u);
    if (found.empty()) continue;
    EXPECT_EQ(found[0].fields, each.fields);
    const std::string& message = found[0].message;
    for (const std::string& field : each.fields) EXPECT_THAT(message, HasSubstr(field));
    for (const std::string& word : each.words) EXPECT_THAT(message, HasSubstr(word));
    EXPECT_THAT(message, HasSubstr(" must be "));
    EXPECT_THAT(message, HasSubstr(", but is "));
    EXPECT_THAT(message, HasSubstr("; ")) << "a remedy";
    EXPECT_EQ(message.find('\n'), std::string::npos);
    EXPECT_NE(message.back(), '.');
  }
}

TEST(OptionConflicts, AllowsWhatGoesTogether) {
  const std::vector<std::pair<const char*, void (*)(ShardOptions&)>> cases = {
      {"comparison of the replicated 1-D parameters",
       [](ShardOptions& o) {
         o.layout = "per_parameter";
         o.replica_check_interval = 10;
       }},
      {"compressed reduction of fp32", [](ShardOptions& o) { o.mixed_precision.reduce_dtype = "bfloat16"; }},
      {"one low type everywhere",
       [](ShardOptions& o) {
         o.mixed_precision = {.param_dtype = "float16",
                              .reduce_dtype = "float16",
                              .buffer_dtype = "float16",
                              .cast_forward_inputs = false,
                              .keep_low_precision_grads = true,
                              .keep_float32 = {"*norm*"}};
       }},
      {"low types of reduction and buffers apart",
       [](ShardOptions& o) {
         o.mixed_precision.reduce_dtype = "float16";
         o.mixed_precision.buffer_dtype = "bfloat16";
       }},
      {"shards in 16 bits that are computed in fp32, except some",
       [](ShardOptions& o) {
         o.param_storage = "bfloat16";
         o.mixed_precision.keep_float32 = {"*norm*"};
       }},
      {"shards in the type of compute, in host memory",
       [](ShardOptions& o) {
         o.param_storage = o.mixed_precision.param_dtype = "float16";
         o.cpu_offload = true;
       }},
      {"keep_float32 for the reduction alone",
       [](ShardOptions& o) {
         o.mixed_precision.reduce_dtype = "bfloat16";
         o.mixed_precision.keep_float32 = {"*norm*"};
       }},
      {"offload",
       [](ShardOptions& o) {
         o.cpu_offload = true;
         o.move_grads_to_cpu = true;
       }},
      {"unlimited prefetch",
       [](ShardOptions& o) {
         o.limit_all_gathers = false;
         o.forward_prefetch = "explicit";
       }},
      {"everything freed after forward",
       [](ShardOptions& o) {
         o.reshard_root_after_forward = true;
         o.reshard_last_after_forward = true;
         o.keep_after_forward = {"layers.*"};
       }},
      {"no_shard with a threshold and types",
       [](ShardOptions& o) {
         o.strategy = "no_shard";
         o.reshard_after_forward = false;
         o.min_num_params = 0;
         o.wrap_stages = {"block"};
       }},
      {"shard_grad_op with explicit prefetch",
       [](ShardOptions& o) {
         o.strategy = "shard_grad_op";
         o.forward_prefetch = "explicit";
         o.replicated_parameters = {"*.bias"};
       }},
      {"types to wrap, to exclude and to leave whole",
       [](ShardOptions& o) {
         o.wrap_stages = {"attention", "block"};
         o.exclude_stages = {"feed_forward"};
         o.leaf_stages = {"block"};
       }},
      {"units alone", [](ShardOptions& o) { o.units = {some_stage()}; }},
      {"a policy alone", [](ShardOptions& o) { o.wrap_policy = wrap_nothing; }},
      {"a divisor", [](ShardOptions& o) { o.gradient_predivide_factor = 2.5; }},
  };
  for (const auto& [name, change] : cases) {
    ShardOptions options;
    change(options);
    for (const OptionConflict& conflict : find_option_conflicts(options)) {
      ADD_FAILURE() << name << ": " << conflict.message;
    }
  }
}

TEST(OptionConflicts, ListsAllConflictsAtOnce) {
  ShardOptions options;
  options.strategy = "no_shard";
  options.forward_prefetch = "explicit";
  options.replicated_parameters = {"*"};
  options.move_grads_to_cpu = true;
  options.min_num_params = -3;
  std::vector<std::string> culprits;
  for (const OptionConflict& conflict : find_option_conflicts(options))
    culprits.push_back(conflict.fields[0]);
  EXPECT_THAT(culprits,
              ::testing::UnorderedElementsAre("fsdp.min_num_params", "fsdp.forward_prefetch",
                                              "fsdp.replicated_parameters", "fsdp.move_grads_to_cpu"));
}

TEST(ShardOptions, DefaultsAreThoseOfThePageOnSources) {
  const ShardOptions options;
  EXPECT_EQ(options.min_num_params, 100'000);
  EXPECT_EQ(options.layout, Layout::kFlat);
  EXPECT_EQ(options.mixed_precision.reduce_dtype, util::FloatType::kFloat32);
  EXPECT_EQ(options.mixed_precision.buffer_dtype, BufferType::kParamDtype);
}

TEST(ShardOptions, RefuseANameThatDoesNotExistWhereItIsSet) {
  ShardOptions options;
  EXPECT_THROW(options.layout = "per_block", util::Error);
  EXPECT_THROW(options.shard_dimension = "longest", util::Error);
  EXPECT_THROW(options.forward_prefetch = "pre", util::Error);
  EXPECT_THROW(options.backward_prefetch = "implicit", util::Error);
  EXPECT_THROW(options.mixed_precision.param_dtype = "bf16", util::Error);
  EXPECT_THROW(options.mixed_precision.reduce_dtype = "float64", util::Error);
  EXPECT_THROW(options.mixed_precision.buffer_dtype = "", util::Error);
  try {
    options.strategy = "zero4";
    FAIL() << "expected an error";
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("expected one of full_shard, shard_grad_op, hybrid_shard, "
                                        "hybrid_shard_zero2, no_shard; found \"zero4\""));
  }
  EXPECT_EQ(options.strategy, Strategy::kFullShard);
}

TEST(OptionConflicts, AreThrownTogetherAsOneUsageError) {
  EXPECT_NO_THROW(require_no_option_conflicts(ShardOptions{}));
  ShardOptions options;
  options.min_num_params = -3;
  options.move_grads_to_cpu = true;
  try {
    require_no_option_conflicts(options);
    FAIL() << "expected an error";
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("fsdp.min_num_params must be at least 0"));
    EXPECT_THAT(error.what(), HasSubstr("\nfsdp.move_grads_to_cpu"));
  }
}

}  // namespace
}  // namespace fsdp::shard
