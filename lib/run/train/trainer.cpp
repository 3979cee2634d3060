#include "run/train/trainer.h"

#include <c10/util/Exception.h>

#include "base/device/cuda.h"
#include "base/util/error.h"
#include "base/util/log.h"
#include "base/util/start_clock.h"
#include "base/util/text.h"
#include "run/train/layer_modes.h"
#include "run/train/step_profile.h"
#include "state/groups/learning_rate.h"

namespace fsdp::train {
namespace fs = std::filesystem;

RunSummary Trainer::run() {
  try {
    train();
  } catch (const c10::OutOfMemoryError&) {
    report_out_of_memory();
  } catch (const c10::Error& error) {
    explain_nondeterminism(error);
    throw;
  } catch (const util::Error& error) {
    // Such an error is thrown on every rank, so they can still finish a save that is under way.
    bool on_every_rank =
        dynamic_cast<const comm::AgreedError*>(&error) != nullptr || error.kind() == ErrorKind::kDiverged;
    if (on_every_rank) checkpointer_->finish();
    throw;
  }
  RunSummary& summary = run_.summary;
  run_.progress.finish_line();
  checkpointer_->finish();
  if (summary.left) return summary;
  checkpointer_->end_of_training();
  const checkpoint::CheckpointOptions& options = run_.config.checkpoint;
  const bool save =
      options.save_at_end || ((summary.stopped || run_.out_of_time) && saves_->schedule().saves_on_the_way());
  saves_->save_if(save && checkpointer_->saved_step() != run_.position.step, /*best=*/false);
  checkpointer_->finish();
  if (checkpointer_->wants_save()) {
    saves_->save_if(/*due=*/true, /*best=*/false);
    checkpointer_->finish();
  }
  metrics_->flush();
  run_.communicator->barrier({.unit = "end of the run"});
  checkpointer_->require_last_save();
  run_.progress.finish_line();
  if (run_.parts.graphs && run_.is_first_rank()) util::log_info(describe(*run_.parts.graphs));
  summary.step = run_.position.step;
  summary.best = validation_->history().best();
  summary.last_checkpoint = checkpointer_->last_saved();
  return summary;
}

void Trainer::train() {
  const RunPosition& position = run_.position;
  run_.begin_training();
  const StepObservers observers = make_observers();
  ObservedStep last{.position = {.step = position.step}};
  for (const auto& each : observers) each->begin(last);
  train_step_ = make_train_step(
      run_.config, run_.parts, *batches_, [this] { return run_.wants_to_stop(); },
      run_.hooks.membership ? run_.hooks.membership->change_is_due : nullptr);
  if (continuation_) continuation_->hand_to(*train_step_);
  const NvtxRanges nvtx(run_.config.logging.nvtx, run_.communicator->device());
  run_.time_left.set_schedule(run_.config);
  run_.meter.start(position.step, position.tokens_seen);
  util::start_phase("first step");
  while (!run_.is_over()) {
    ObservedStep step{.position = next_position()};
    for (const auto& each : observers) each->begin_step(step);
    step.result = train_step_->run(step.position);
    for (const auto& each : observers) each->end_step(step);
    if (step.ends_run) break;  // run() saves
    run_.meter.pause();
    for (const auto& each : observers) each->between_steps(step);
    run_.meter.go_on();
  }
  for (const auto& each : observers) each->finish();
}

StepPosition Trainer::next_position() const {
  const config::Config& config = run_.config;
  const int64_t step = run_.position.step + 1, steps = config.training.steps;
  const auto is_due = [&](int64_t interval) { return interval > 0 && step % interval == 0; };
  const int64_t micro_batches = micro_steps_of(config.training, step);
  return {.step = step,
          .first_global_sample = run_.position.samples_seen,
          .lr = optim::lr_at(config.optimizer, config.lr_scheduler, step, steps),
          .samples = loader_->samples_per_micro_step() * micro_batches,
          .micro_batches = micro_batches,
          .reads_outcome = step == steps || is_due(config.logging.interval_steps) ||
                           saves_->schedule().may_be_due(step) || is_due(config.evaluation.interval_steps) ||
                           checkpointer_->wants_save()};
}

std::filesystem::path Trainer::memory_snapshot() const {
  return run_.output_folder() / concat("memory.rank", run_.communicator->rank(), ".pickle");
}

/// Reports that the device is out of memory. Without host memory, the system kills the process.
void Trainer::report_out_of_memory() const {
  std::string found, advice;
  if (const at::Device device = run_.communicator->device(); device.is_cuda()) {
    const util::CudaMemory memory = util::cuda_memory(device.index());
    found = concat(": tensors have ", util::human_bytes(memory.allocated_bytes), ", the allocator holds ",
                   util::human_bytes(memory.reserved_bytes), " of ",
                   util::human_bytes(util::cuda_device(device.index()).memory_bytes), " of ", device.str(),
                   ", and NCCL, the CUDA context and other processes ",
                   util::human_bytes(util::cuda_bytes_in_use(device.index()) - memory.reserved_bytes));
  }
  std::error_code ignored;
  if (run_.config.logging.memory_snapshot && fs::exists(memory_snapshot(), ignored)) {
    advice = concat(memory_snapshot().string(),
                    " shows what held the memory (open it in https://docs.pytorch.org/memory_viz)");
  } else {
    advice = "logging.memory_snapshot = true would record what held the memory";
  }
  fail(ErrorKind::kUnexpected, "the device is out of memory in step ", run_.position.step + 1, found,
       "; it has no room for a micro-batch of ", run_.config.data.micro_batch_size,
       " sequences: lower data.micro_batch_size (and raise training.gradient_accumulation_steps), "
       "set activation_checkpointing.mode to full or offload, or fsdp.cpu_offload to true; "
       "fsdp-plan computes what each saves, and ",
       advice);
}

}  // namespace fsdp::train
