#include "setup/config/global_batch.h"

#include <cstdlib>

#include "base/util/error.h"
#include "comm/options/mesh_shape.h"

namespace fsdp::config {
namespace {

/// ", or data.micro_batch_size = 2": the size nearest to `given` with which micro-batches of `ranks` ranks
/// divide the batch; empty if there is none.
std::string other_micro_batch(int64_t batch, int64_t ranks, int64_t given) {
  if (batch % ranks != 0) return "";
  const int64_t of_a_rank = batch / ranks;
  int64_t best = 1;  // divides everything
  for (int64_t rows = 1; rows <= of_a_rank && rows <= 2 * given; ++rows) {
    if (of_a_rank % rows == 0 && std::abs(rows - given) < std::abs(best - given)) best = rows;
  }
  return concat(", or data.micro_batch_size = ", best);
}

}  // namespace

int64_t row_ranks(const Config& config, int64_t world_size) {
  return comm::resolve_mesh(config.mesh, static_cast<int>(world_size)).row_ranks();
}

namespace {

/// Micro-batches of 12 samples become three of 4.
void divide_micro_batches(Config& config) {
  if (config.training.reproducible != Reproducible::kWorldSize || config.data.max_tokens > 0) return;
  int64_t& rows = config.data.micro_batch_size;
  const int64_t power = rows & -rows;
  config.training.gradient_accumulation_steps *= rows / power;
  rows = power;
}

void derive_micro_batches(Config& config, int64_t world_size) {
  const int64_t batch = config.training.global_batch_size, rows = data::samples_at_once(config.data);
  const std::string rows_text =
      config.data.max_tokens > 0 ? "" : concat(" * ", rows, " (data.micro_batch_size)");
  int64_t& micro_batches = config.training.gradient_accumulation_steps;
  if (batch == 0) return;
  const int64_t ranks = row_ranks(config, world_size), at_once = ranks * rows;
  const std::string ranks_text =
      concat(ranks, ranks == world_size ? " ranks" : " ranks of mesh.dcn x mesh.data");
  if (batch % at_once != 0) {
    const int64_t below = batch / at_once * at_once;
    fail(ErrorKind::kUsage, "training.global_batch_size must be a multiple of ", ranks_text, rows_text, " = ",
         at_once, ", but is ", batch, " = ", batch / at_once, " * ", at_once, " + ", batch % at_once,
         "; set it to ", below > 0 ? concat(below, " or ") : "", below + at_once,
         config.data.max_tokens > 0 ? "" : other_micro_batch(batch, ranks, rows));
  }
  if (micro_batches != 0 && micro_batches != batch / at_once) {
    fail(ErrorKind::kUsage, "training.gradient_accumulation_steps must be ", batch / at_once,
         ", because training.global_batch_size = ", batch, " takes that many micro-batches of ", ranks_text,
         rows_text, ", but is ", micro_batches, "; leave one of the two out, or set it to 0");
  }
  micro_batches = batch / at_once;
}

}  // namespace

void resolve_batch(Config& config, int64_t world_size) {
  derive_micro_batches(config, world_size);
  divide_micro_batches(config);
}

int64_t samples_per_step(const Config& config, int64_t world_size) {
  return row_ranks(config, world_size) * data::samples_at_once(config.data) *
         config.training.gradient_accumulation_steps;
}

void plan_largest_batches(Config& config) {
  data::DataOptions& data = config.data;
  if (data.max_tokens == 0) return;
  data.micro_batch_size = (data.max_tokens + data.sequence_length - 1) / data.sequence_length;
  data.max_tokens = 0;
  config.training.global_batch_size = 0;  // counted batches
}

}  // namespace fsdp::config
