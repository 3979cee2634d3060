#include "shard/unit_options.h"

#include <cmath>

#include "shard/strategy.h"
#include "util/dtype.h"
#include "util/name_patterns.h"

namespace fsdp::shard {
namespace {

/// For float16 sums: half of the division before the sum and half after keeps both from leaving its range.
double predivide_factor(const ShardOptions& options, c10::ScalarType reduce_dtype, int ranks) {
  if (options.gradient_predivide_factor > 0) return options.gradient_predivide_factor;
  if (reduce_dtype != c10::ScalarType::Half) return 1;
  return std::exp2(std::round(std::log2(ranks) / 2));
}

}  // namespace

UnitOptions unit_options(const ShardOptions& options, const UnitTraits& unit, int ranks) {
  const MixedPrecisionOptions& precision = options.mixed_precision;
  UnitOptions result;
  if (!unit.keep_float32) {
    result.storage.param_dtype = util::dtype_from_name(precision.param_dtype);
    result.storage.reduce_dtype = util::dtype_from_name(precision.reduce_dtype);
  }
  result.storage.layout = options.layout;
  result.storage.keep_low_precision_grads = precision.keep_low_precision_grads;
  result.storage.cpu_offload = options.cpu_offload;
  result.storage.move_grads_to_cpu = options.move_grads_to_cpu;
  result.gradient_predivide_factor = predivide_factor(options, result.storage.reduce_dtype, ranks);
  result.reshard_after_forward = reshards(options.strategy) && options.reshard_after_forward &&
                                 !util::matches_any(unit.name, options.keep_after_forward) &&
                                 (!unit.is_root || options.reshard_root_after_forward);
  return result;
}

}  // namespace fsdp::shard
