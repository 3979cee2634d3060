#include "train/evaluator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include "nn/loss.h"

namespace fsdp::train {

double validation_loss(nn::Stage& model, const data::ValidationLoader& loader,
                       comm::Communicator& communicator) {
  at::NoGradGuard no_grad;
  at::Tensor totals = at::zeros({2}, at::kDouble);  // sum of losses, rows
  double* sums = totals.data_ptr<double>();
  for (int64_t index = 0; index < loader.num_batches(); ++index) {
    data::Batch batch = loader.batch(index);
    // A batch without rows that count still runs: its forward is collective.
    at::Tensor loss = nn::loss_of(model, batch.inputs, batch.targets);
    if (batch.valid_rows == 0) continue;
    sums[0] += loss.item<double>() * static_cast<double>(batch.valid_rows);
    sums[1] += static_cast<double>(batch.valid_rows);
  }
  communicator.all_reduce(totals, comm::ReduceOp::kSum, {.unit = "validation loss"})->wait();
  return sums[0] / sums[1];
}

}  // namespace fsdp::train
