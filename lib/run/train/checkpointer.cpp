#include "run/train/checkpointer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/objects/object_name.h"
#include "base/util/clock.h"
#include "base/util/error.h"
#include "base/util/log.h"
#include "base/util/text.h"
#include "model/families/families.h"
#include "model/nn/layers.h"
#include "model/nn/lora.h"
#include "run/train/local_steps.h"
#include "run/train/model_record.h"
#include "setup/config/model_description.h"
#include "shard/engine/engine.h"
#include "shard/engine/rank_checks.h"
#include "state/checkpoint/error_slices.h"
#include "state/convert/inspect.h"
#include "state/description/described_model.h"
#include "state/groups/parameter_groups.h"
#include "state/weights/weights.h"

namespace fsdp::train {
namespace fs = std::filesystem;
using checkpoint::Manifest;
using shard::TensorSlice;

namespace {

constexpr const char* kRemoval = "removal of old checkpoints";

}  // namespace

Checkpointer::Checkpointer(const config::Config& config, const TrainingState& state,
                           comm::Communicator& communicator, Hooks hooks)
    : config_(config),
      state_(state),
      communicator_(communicator),
      hooks_(std::move(hooks)),
      model_(config::model_description(config)) {
  if (!uploads()) return;
  uploads_ = std::make_unique<CheckpointUploads>(
      config_.checkpoint.upload_to, output_folder(), communicator_,
      CheckpointUploads::UploadHooks{
          .say = [this](const std::string& message, bool warning) { say(message, warning); },
          .retention = [this] { return retention_of_all(); }});
}

Checkpointer::~Checkpointer() {
  if (config_.checkpoint.asynchronous) set_step_pre_hook(nullptr);
}

void Checkpointer::set_step_pre_hook(std::function<void()> hook) {
  if (state_.outer != nullptr) state_.outer->set_step_pre_hook(hook);
  state_.optimizer.set_step_pre_hook(std::move(hook));
}

void Checkpointer::remember_model() {
  model_ = train::remember_model(config_, {.resume = resumed_from_, .init = started_from_});
  model_.erase(checkpoint::kAdapterKey);  // those of the base are a part of its weights
  if (config_.lora.is_on()) model_[checkpoint::kAdapterKey] = checkpoint::adapter_json(adapter());
}

const checkpoint::AdapterDescription& Checkpointer::adapter() {
  if (adapter_) return *adapter_;
  const std::string& base = config_.model.init_from;
  adapter_.emplace();
  adapter_->lora = config_.lora;
  const nn::Family* family = nn::find_family(config_.model.architecture);
  adapter_->transposed = family != nullptr && family->transposed;
  for (const auto& segments : state_.engine.segments_by_parameter()) {
    const auto name = nn::lora_name(segments.front().name);
    if (name && name->part == nn::LoraPart::kA) adapter_->layers.push_back(name->layer);
  }
  if (!base.empty()) {
    // The newest checkpoint of a run changes.
    const bool is_checkpoint = checkpoint::format_of(base) == checkpoint::WeightsFormat::kCheckpoint;
    const fs::path weights = is_checkpoint ? checkpoint::checkpoint_folder(base) : fs::path(base);
    const bool is_remote = objects::is_remote(weights.string());
    adapter_->base = is_remote ? weights.string() : fs::absolute(weights).lexically_normal().string();
  }
  adapter_->base_identity = base.empty() ? checkpoint::identity_of_random(config_.run.seed)
                                         : checkpoint::identity_of(adapter_->base);
  return *adapter_;
}

void Checkpointer::save(const RunPosition& position) {
  finish();
  begin_save(position, /*best=*/false);
}

void Checkpointer::save_best(const RunPosition& position) {
  finish();
  if (saved_step_ == position.step) return mark_best(position.step);
  begin_save(position, /*best=*/true);
}

void Checkpointer::begin_save(const RunPosition& position, bool best) {
  const checkpoint::CheckpointOptions& options = config_.checkpoint;
  // Unlike failures of the save itself, this one ends the run: nothing that it saves would be found.
  checkpoint::Retention kept;
  comm::agree(communicator_, "output folder", [&] {
    if (lock_) lock_->require_same_folder();
    if (!verifies()) kept = retention();
  });
  step_being_saved_ = position.step;
  seconds_being_saved_ = position.training_seconds;
  save_began_ = std::chrono::steady_clock::now();
  wants_save_ = false;
  best_is_being_saved_ = best;
  if (!tree_) tree_ = std::make_shared<comm::RankTree>(communicator_);
  attempt([&] {
    nlohmann::json training = training_record(config_, state_, position);
    if (is_first_rank()) training["run"] = run_;
    if (state_.outer != nullptr) add_replica_records(training, *state_.outer);
    checkpoint::SaveRequest request{.root = output_folder(),
                                    .step = position.step,
                                    .layout = config_.fsdp.layout.name(),
                                    .training = std::move(training),
                                    .model = model_,
                                    .tree = tree_,
                                    .retention = kept,
                                    .in_the_middle = [this, step = position.step] {
                                      if (hooks_.in_the_middle) hooks_.in_the_middle(step);
                                    }};
    shard::warn_of_unequal_buffers(state_.engine, "saving a checkpoint");
    std::vector<TensorSlice> slices = state_.slices_to_save();
    if (options.asynchronous) {
      slices = copies_.begin(slices, names_of_early_changes(slices), [this, step = position.step] {
        if (hooks_.before_copy) hooks_.before_copy(step);
      });
      request.complete_slices = [this] { finish_copy(); };
    } else if (!checkpoint::in_host_memory(slices)) {
      slices = copies_.take(slices);
    }
    if (options.asynchronous) {
      under_way_ =
          std::make_unique<checkpoint::SaveUnderWay>(std::move(request), std::move(slices), communicator_);
    } else if (options.kind == checkpoint::CheckpointKind::kFull) {
      succeeded(checkpoint::save_full(request, slices, communicator_));
    } else {
      succeeded(checkpoint::save_sharded(request, slices, communicator_));
    }
  });
}

/// Returns the names of the slices that a forward or backward may change. All others are changed by the
/// optimizer alone.
std::set<std::string> Checkpointer::names_of_early_changes(const std::vector<TensorSlice>& slices) const {
  std::set<std::string> names;
  for (const auto& buffer : state_.engine.buffers()) names.insert("model/" + buffer.name);
  for (const TensorSlice& slice : slices) {
    if (slice.name.starts_with(checkpoint::kErrorPrefix)) names.insert(slice.name);
  }
  return names;
}

void Checkpointer::finish_copy() {
  const auto began = std::chrono::steady_clock::now();
  copies_.finish();
  copy_seconds_ += util::seconds_since(began);
}

void Checkpointer::poll() {
  if (verification_ && verification_->task->done_everywhere()) settle_verification();
  if (uploads_) uploads_->poll();
  if (!under_way_) return;
  attempt([&] {
    if (under_way_->advance()) succeeded(under_way_->finish());
  });
}

void Checkpointer::finish() {
  if (under_way_) attempt([&] { succeeded(under_way_->finish()); });
  if (verification_) settle_verification();
  if (uploads_ && training_is_over_) uploads_->finish();
}

/// Each rank reads back the file that it wrote.
void Checkpointer::begin_verification(const fs::path& folder) {
  verification_ = std::make_unique<Verification>();
  verification_->folder = folder;
  verification_->step = step_being_saved_;
  verification_->best = best_is_being_saved_;
  auto takes = [own = checkpoint::shard_file_name(communicator_.rank(), communicator_.world_size()),
                first = is_first_rank()](const std::string& name) {
    return name == own || (first && name == checkpoint::kFullFileName);
  };
  verification_->task = std::make_unique<checkpoint::BackgroundTask>(
      communicator_, "verification of a checkpoint",
      [to = verification_.get(), takes] { to->damage = checkpoint::damage_in(to->folder, takes); });
}

void Checkpointer::settle_verification() {
  const std::unique_ptr<Verification> done = std::move(verification_);
  try {
    done->task->join();
  } catch (const comm::AgreedError& error) {
    return say(concat(done->folder.string(), " could not be read back to verify it: ", error.what()),
               /*warning=*/true);
  }
  const std::string damage =
      comm::first_text(communicator_, done->damage, {.unit = "verification of a checkpoint"});
  if (damage.empty()) return done->best ? mark_best(done->step) : prune();
  if (saved_step_ == done->step) saved_step_.reset();
  if (last_saved_ == done->folder) last_saved_.clear();
  wants_save_ = true;
  ++counts_.failed;
  std::string aside = "it could not be renamed";
  try {
    comm::agree(communicator_, "damaged checkpoint", [&] {
      if (is_first_rank())
        aside = concat("renamed to ", checkpoint::set_aside(done->folder, checkpoint::kDamaged).string());
    });
  } catch (const comm::AgreedError& error) {
    aside = error.what();
  }
  failure_ = comm::AgreedError(
      ErrorKind::kCheckpoint,
      concat("the checkpoint of step ", done->step, " was damaged when it was read back: ", damage));
  say(concat(failure_->what(), "; ", aside, "; the next step is saved in its place"), /*warning=*/true);
}

/// Removes old checkpoints. With checkpoint.verify_saved, they stay until the new one is verified.
void Checkpointer::prune() {
  comm::agree(communicator_, kRemoval, [&] { remove_old(); });
}

/// Removes on rank 0. Not collective, because deleting may take longer than a collective waits.
void Checkpointer::remove_old() {
  if (!is_first_rank()) return;
  try {
    for (const fs::path& removed : checkpoint::prune(output_folder(), retention())) {
      say("removed " + removed.string());
    }
  } catch (const util::Error& error) {
    say(concat("old checkpoints could not be removed: ", error.what()), /*warning=*/true);
  }
}

void Checkpointer::attempt(const std::function<void()>& part_of_save) {
  try {
    part_of_save();
  } catch (const comm::AgreedError& error) {
    under_way_.reset();
    failed(error);
  }
}

void Checkpointer::succeeded(const checkpoint::SavedCheckpoint& saved) {
  under_way_.reset();
  failure_.reset();
  saved_step_ = step_being_saved_;
  saved_seconds_ = seconds_being_saved_;
  last_saved_ = saved.folder;
  ++counts_.saved;
  counts_.seconds += util::seconds_since(save_began_);
  counts_.last_saved_at = std::chrono::system_clock::now();
  say("saved " + saved.folder.string());
  for (const fs::path& removed : saved.removed) say("removed " + removed.string());
  if (!saved.removal_failure.empty()) {
    say("old checkpoints could not be removed: " + saved.removal_failure, /*warning=*/true);
  }
  if (uploads_) uploads_->add(saved.folder, step_being_saved_);
  if (verifies()) return begin_verification(saved.folder);
  if (best_is_being_saved_) mark_best(step_being_saved_);
}

/// The previous best is kept until the new one is marked.
void Checkpointer::mark_best(int64_t step) {
  comm::agree(communicator_, "mark of the best checkpoint", [&] {
    if (!is_first_rank()) return;
    try {
      // The checkpoint of a step that was resumed from another folder is not in this folder.
      if (!fs::exists(output_folder() / checkpoint::step_folder_name(step))) return;
      checkpoint::mark_best(output_folder(), step);
      remove_old();
    } catch (const util::Error& error) {
      say(concat("step ", step, " is not marked as the best checkpoint: ", error.what()), /*warning=*/true);
    }
  });
}

/// The checkpoints to keep, in the run's folder and in a store.
checkpoint::Retention Checkpointer::retention_of_all() const {
  checkpoint::Retention retention{
      .keep_last = config_.checkpoint.keep_last, .keep_every = config_.checkpoint.keep_every, .run = run_};
  // A best checkpoint stays, even if the config no longer asks for one. Only rank 0 removes.
  if (!is_first_rank()) return retention;
  if (const auto best = checkpoint::best_step(output_folder())) retention.keep_steps.push_back(*best);
  return retention;
}

checkpoint::Retention Checkpointer::retention() const {
  checkpoint::Retention retention = retention_of_all();
  if (!uploads_) return retention;
  for (const int64_t step : uploads_->steps_in_use()) retention.keep_steps.push_back(step);
  return retention;
}

void Checkpointer::failed(const comm::AgreedError& error) {
  ++counts_.failed;
  failure_ = comm::AgreedError(
      error.kind(),
      concat("the checkpoint of step ", step_being_saved_, " could not be saved: ", error.what(),
             last_saved_.empty() && resumed_from_.empty()
                 ? "; there is no checkpoint of this run yet"
                 : concat("; the newest checkpoint is ",
                          (last_saved_.empty() ? resumed_from_ : last_saved_).string())));
  if (training_is_over_ || step_being_saved_ >= config_.training.steps) return;
  say(concat(failure_->what(), "; training continues until the next save"), /*warning=*/true);
}

void Checkpointer::require_last_save() const {
  if (failure_) throw *failure_;
  if (uploads_) uploads_->require_last();
}

void Checkpointer::say(const std::string& message, bool warning) const {
  if (!is_first_rank() || message.empty()) return;
  if (hooks_.before_speaking) hooks_.before_speaking();
  warning ? util::log_warning(message) : util::log_info(message);
}

}  // namespace fsdp::train
