#include "shard/spmd/spmd_hook.h"

#include <optional>
#include <utility>

#include "base/util/error.h"
#include "base/util/log.h"
#include "shard/spmd/marks.h"

namespace fsdp::shard {

std::shared_ptr<void> SpmdHook::before(const nn::CallTensors& inputs) {
  if (!is_inner_) cut_batch(inputs);
  return std::make_shared<InsideShardedModule>();
}

void SpmdHook::cut_batch(const nn::CallTensors& inputs) const {
  std::optional<int64_t> rows;  // of the global batch
  for (size_t i = 0; i < inputs.size(); ++i) {
    at::Tensor& input = *inputs[i];
    const auto sharding = sharding_of(input);
    const bool is_whole = sharding && sharding->spec.axes(0).empty();
    if (input.dim() == 0 || is_whole) continue;
    const int64_t size = sharding ? sharding->global_shape[0] : input.size(0);
    if (rows.value_or(size) != size) {
      fail(ErrorKind::kUsage, "sharded module: expected inputs of one batch, of ", *rows,
           " rows; found input ", i, " of shape ", input.sizes(),
           "; mark it with mark_local_shard(tensor, mesh, {}) if every rank needs all of it");
    }
    rows = size;
    // A leaf that requires a gradient would be taken for a parameter.
    if (!sharding) input = mark_sharding(input.is_leaf() ? input.view_as(input) : input, mesh_, batch_spec());
  }
}

void SpmdHook::after(const nn::CallTensors& outputs) {
  if (outputs.empty()) return;
  if (outputs.size() > 1 && !std::exchange(is_warned_, true)) {
    util::log_warning(concat("spmd_fully_shard(): the module returns ", outputs.size(),
                             " tensors, the first of which is taken to be the sharded activation"));
  }
  at::Tensor& output = *outputs.front();
  const bool is_marked = sharding_of(output).has_value();
  if (!shard_output_) {
    if (is_marked) return;
    if (output.dim() > 0) {
      mark_local_shard(output, mesh_, batch_spec());
    } else {  // such as the loss of this rank's rows
      mark_activation(output, UndeterminedMark{"a sharded module that returns a number"});
    }
    return;
  }
  if (!is_marked) mark_activation(output, UnstatedMark{});
  if (at::Tensor marked = shard_output_(output, mesh_); marked.defined()) output = std::move(marked);
}

}  // namespace fsdp::shard
