#include "shard/unit_options.h"

#include <cmath>

#include "util/dtype.h"

namespace fsdp::shard {
namespace {

/// For float16 sums: half of the division before the sum and half after keeps both from leaving its range.
double predivide_factor(const ShardOptions& options, c10::ScalarType reduce_dtype, int ranks) {
  if (options.gradient_predivide_factor > 0) return options.gradient_predivide_factor;
  if (reduce_dtype != c10::ScalarType::Half) return 1;
  return std::exp2(std::round(std::log2(ranks) / 2));
}

}  // namespace

UnitOptions unit_options(const ShardOptions& options, bool keep_float32, int ranks) {
  const MixedPrecisionOptions& precision = options.mixed_precision;
  UnitOptions result;
  if (!keep_float32) {
    result.storage.param_dtype = util::dtype_from_name(precision.param_dtype);
    result.storage.reduce_dtype = util::dtype_from_name(precision.reduce_dtype);
  }
  result.storage.layout = options.layout;
  result.storage.keep_low_precision_grads = precision.keep_low_precision_grads;
  result.storage.cpu_offload = options.cpu_offload;
  result.storage.move_grads_to_cpu = options.move_grads_to_cpu;
  result.gradient_predivide_factor = predivide_factor(options, result.storage.reduce_dtype, ranks);
  return result;
}

}  // namespace fsdp::shard
