#include "train/checkpointer.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "checkpoint/described_model.h"
#include "checkpoint/folders.h"
#include "checkpoint/inspect.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "checkpoint/state_slices.h"
#include "checkpoint/weights.h"
#include "config/model_description.h"
#include "nn/families.h"
#include "nn/layers.h"
#include "nn/lora.h"
#include "optim/parameter_groups.h"
#include "shard/rank_checks.h"
#include "train/arithmetic.h"
#include "train/model_record.h"
#include "util/dtype.h"
#include "util/error.h"
#include "util/file.h"
#include "util/log.h"
#include "util/nearest_pattern.h"
#include "util/text.h"

namespace fsdp::train {
namespace fs = std::filesystem;
using checkpoint::Manifest;
using shard::TensorSlice;
using util::concat;

namespace {

constexpr std::string_view kModelPrefix = "model/";

/// Whether a tensor of a checkpoint is a weight whose parameter matches one of the patterns; no patterns
/// match all.
bool is_weight(const std::string& name, const std::vector<std::string>& patterns) {
  if (!name.starts_with(kModelPrefix)) return false;
  return patterns.empty() || util::matches_any(name.substr(kModelPrefix.size()), patterns);
}

void require_matches(const char* key, const std::vector<std::string>& patterns, const shard::Engine& engine) {
  std::vector<std::string> names;
  for (const shard::Segment& segment : engine.segments()) names.push_back(segment.name);
  for (const std::string& pattern : patterns) {
    if (std::any_of(names.begin(), names.end(),
                    [&](const std::string& name) { return util::matches_any(name, {pattern}); })) {
      continue;
    }
    util::fail(util::ErrorKind::kUsage, key, ": expected patterns of names of parameters such as ",
               names.front(), "; found \"", pattern, "\", which matches none; ",
               util::pattern_remedy(pattern, names));
  }
}

/// checkpoint::load_slices(), through host memory where the state is on a device.
std::vector<std::string> load(const fs::path& folder, const Manifest& manifest,
                              const std::vector<TensorSlice>& slices,
                              const checkpoint::LoadOptions& strictness) {
  if (checkpoint::in_host_memory(slices)) {
    return checkpoint::load_slices(folder, manifest, slices, strictness);
  }
  checkpoint::HostCopies copies;
  std::vector<std::string> missing =
      checkpoint::load_slices(folder, manifest, copies.take(slices), strictness);
  copies.write_back(slices);
  return missing;
}

}  // namespace

Checkpointer::Checkpointer(const config::Config& config, const TrainingState& state,
                           comm::Communicator& communicator, Hooks hooks)
    : config_(config),
      state_(state),
      communicator_(communicator),
      hooks_(std::move(hooks)),
      model_(config::model_description(config)) {}

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
    // A run's newest checkpoint changes.
    const bool is_checkpoint = checkpoint::format_of(base) == checkpoint::WeightsFormat::kCheckpoint;
    const fs::path weights = is_checkpoint ? checkpoint::checkpoint_folder(base) : fs::path(base);
    adapter_->base = fs::absolute(weights).lexically_normal().string();
  }
  adapter_->base_identity = base.empty() ? checkpoint::identity_of_random(config_.run.seed)
                                         : checkpoint::identity_of(adapter_->base);
  return *adapter_;
}

void Checkpointer::require_same_adapter(const Manifest& manifest, const fs::path& folder) {
  const std::string where = (folder / checkpoint::kManifestName).string();
  const auto found = checkpoint::described_adapter(manifest.model, where);
  if (found.has_value() != config_.lora.is_on()) {
    util::fail(util::ErrorKind::kCheckpoint, "lora.rank must be ", found ? found->lora.rank : 0, ", as in ",
               where, ", but is ", config_.lora.rank, found ? "" : ", and the checkpoint holds all weights",
               "; restore it, or start a new run from that checkpoint with model.init_from and another "
               "run.output_dir");
  }
  if (found) checkpoint::require_same_adapter(*found, adapter(), where);
}

RunPosition Checkpointer::restore() {
  while (!load_chosen(choose())) {
  }
  comm::agree(communicator_, "output folder", [&] {
    if (!is_first_rank()) return;
    take_folder();
    for (const fs::path& removed : checkpoint::remove_leftovers(output_folder())) {
      say(concat("removed ", removed.string(), ", left unfinished by a run that was stopped"));
    }
  });
  if (config_.checkpoint.asynchronous) {
    copies_.prepare(
        checkpoint::state_slices(state_.engine, state_.optimizer, checkpoint::SlicePurpose::kSave));
  }
  return restored_;
}

/// False when the checkpoint was damaged and has been renamed, so that an older one is to be tried.
bool Checkpointer::load_chosen(const Choice& choice) {
  constexpr const char* kPurpose = "loading the checkpoint";
  std::string file, cause;
  comm::agree(communicator_, kPurpose, [&] {
    try {
      if (!choice.resume.empty()) load_all(choice.resume);
      if (!choice.init.empty()) load_weights(choice.init);
    } catch (const checkpoint::DamageError& error) {
      if (config_.checkpoint.resume != "auto" || choice.resume.empty()) throw;
      file = error.file().filename().string();
      cause = error.what();
    }
  });
  const std::vector<std::string> files = comm::all_gather_text(communicator_, file, {.unit = kPurpose});
  const std::vector<std::string> causes = comm::all_gather_text(communicator_, cause, {.unit = kPurpose});
  const auto first =
      std::find_if(causes.begin(), causes.end(), [](const auto& text) { return !text.empty(); });
  if (first == causes.end()) return true;
  leave_damaged(choice.resume, files, *first);
  return false;
}

/// Renames only what rank 0 finds damaged too: a rank with faulty memory or a faulty link to the storage
/// would see damage in one good checkpoint after another.
void Checkpointer::leave_damaged(const fs::path& folder, const std::vector<std::string>& files,
                                 const std::string& cause) {
  fs::path aside;
  checkpoint::agree_in_background(communicator_, "damaged checkpoint", [&] {
    if (!is_first_rank()) return;
    const std::string seen = checkpoint::damage_in(
        folder, [&](const auto& name) { return std::find(files.begin(), files.end(), name) != files.end(); });
    if (seen.empty()) {
      util::fail(util::ErrorKind::kIo, cause, "; but ", folder.string(),
                 " is intact when rank 0 reads it again: check the memory and the storage of the "
                 "machines of this run");
    }
    const auto found = checkpoint::find_checkpoints(output_folder()).complete;
    const int64_t step = checkpoint::step_of_folder_name(folder.filename().string()).value_or(0);
    if (std::none_of(found.begin(), found.end(), [&](const auto& other) { return other.step < step; })) {
      util::fail(util::ErrorKind::kCheckpoint, cause, "; no older checkpoint is left in ",
                 output_folder().string(),
                 ": start from scratch with checkpoint.resume=never or another run.output_dir, unless "
                 "there is a copy");
    }
    aside = checkpoint::set_aside(folder);
  });
  say(concat("renamed the damaged checkpoint ", folder.string(), " to ", aside.string(), ": ", cause),
      /*warning=*/true);
}

/// Rank 0 chooses, so that a file system on which ranks see different folders cannot split the run.
Checkpointer::Choice Checkpointer::choose() {
  constexpr const char* kPurpose = "choice of a checkpoint";
  std::string resume, init;
  comm::agree(communicator_, kPurpose, [&] {
    if (!is_first_rank()) return;
    // Locked before the choice, or another run might remove the chosen checkpoint. A folder that does not
    // exist yet is made once nothing can be refused any more.
    if (util::is_there(output_folder())) take_folder();
    checkpoint::ResumeChoice choice = checkpoint::resolve_resume(output_folder(), config_.checkpoint.resume);
    for (const checkpoint::TornCheckpoint& damaged : choice.damaged) {
      say(concat("renamed the damaged checkpoint ", damaged.folder.string(), " to ",
                 checkpoint::set_aside(damaged.folder).string(), ": ", damaged.reason),
          /*warning=*/true);
    }
    say(choice.message);
    if (choice.folder) resume = choice.folder->string();
    if (config_.checkpoint.init_from.empty()) return;
    if (choice.folder) {
      say("checkpoint.init_from is not used, because the run resumes");
    } else {
      init = checkpoint::checkpoint_folder(config_.checkpoint.init_from).string();
    }
  });
  return {.resume = comm::all_gather_text(communicator_, resume, {.unit = kPurpose}).front(),
          .init = comm::all_gather_text(communicator_, init, {.unit = kPurpose}).front()};
}

void Checkpointer::take_folder() {
  util::make_writable_folder(output_folder());
  if (!lock_) lock_.emplace(output_folder());
}

void Checkpointer::load_all(const fs::path& folder) {
  Manifest manifest = checkpoint::read_manifest(folder);
  if (manifest.training.contains("data") && !state_.data.is_null()) {
    require_same_data(manifest.training["data"], state_.data, config_.data.allow_changed, folder.string());
  }
  if (is_first_rank()) require_same_adapter(manifest, folder);
  if (is_first_rank() && config_.training.reproducible == config::Reproducible::kWorldSize) {
    warn_of_other_arithmetic(manifest.training, folder.string());
  }
  require_same_max_tokens(manifest.training, config_.data.max_tokens, folder.string());
  const auto is_average = [](const auto& item) { return item.first.starts_with(checkpoint::kAveragePrefix); };
  const bool has_averages = std::any_of(manifest.tensors.begin(), manifest.tensors.end(), is_average);
  const bool keeps_averages = config_.optimizer.ema_decay > 0;
  checkpoint::LoadOptions strictness{.refuse_unexpected = true};
  // Training does not depend on averages, so optimizer.ema_decay may be switched on and off.
  if (!keeps_averages && has_averages) std::erase_if(manifest.tensors, is_average);
  if (keeps_averages && !has_averages) {
    strictness.may_be_missing.push_back(concat(checkpoint::kAveragePrefix, "*"));
  }
  strictness.may_be_converted = {concat(kModelPrefix, "*")};
  const std::vector<TensorSlice> slices =
      checkpoint::state_slices(state_.engine, state_.optimizer, checkpoint::SlicePurpose::kLoad);
  load(folder, manifest, slices, strictness);
  tell_of_conversions(manifest, slices);
  if (keeps_averages && !has_averages) {
    const auto& parameters = state_.optimizer.parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor average = state_.optimizer.state(optim::kEmaState, i);
      if (average.numel() > 0) average.copy_(parameters[i].value);
    }
  }
  if (keeps_averages != has_averages) {
    say(keeps_averages
            ? "the checkpoint has no averages of the weights; they start from its weights"
            : "the averages of the weights in the checkpoint are ignored, because optimizer.ema_decay is 0");
  }
  restored_ = restore_training_record(manifest.training, manifest.step, state_,
                                      (folder / checkpoint::kManifestName).string());
  resumed_from_ = folder;
  saved_step_ = manifest.step;
}

/// Weights are kept in the type that fsdp.param_storage says, whatever it was before.
void Checkpointer::tell_of_conversions(const Manifest& manifest,
                                       const std::vector<TensorSlice>& slices) const {
  std::map<std::pair<std::string, std::string>, int64_t> numbers;
  for (const TensorSlice& slice : slices) {
    const auto stored = manifest.tensors.find(slice.name);
    if (stored == manifest.tensors.end() || stored->second.dtype == slice.data.scalar_type()) continue;
    ++numbers[{util::dtype_name(stored->second.dtype), util::dtype_name(slice.data.scalar_type())}];
  }
  for (const auto& [types, number] : numbers) {
    say(concat(number, number == 1 ? " tensor" : " tensors", " of the checkpoint in ", types.first,
               number == 1 ? " is" : " are", " kept in ", types.second, " from now on",
               types.second == "float32" ? "" : ", rounded to nearest", " (fsdp.param_storage)"));
  }
}

void Checkpointer::load_weights(const fs::path& folder) {
  const checkpoint::CheckpointOptions& options = config_.checkpoint;
  require_matches("checkpoint.init_only", options.init_only, state_.engine);
  require_matches("checkpoint.init_missing", options.init_missing, state_.engine);
  Manifest manifest = checkpoint::read_manifest(folder);
  std::erase_if(manifest.tensors,
                [&](const auto& item) { return !is_weight(item.first, options.init_only); });
  std::vector<TensorSlice> slices =
      checkpoint::state_slices(state_.engine, state_.optimizer, checkpoint::SlicePurpose::kLoad);
  std::erase_if(slices, [&](const TensorSlice& slice) { return !is_weight(slice.name, options.init_only); });
  checkpoint::LoadOptions strictness{.refuse_unexpected = true};
  for (const std::string& pattern : options.init_missing) {
    strictness.may_be_missing.push_back(concat(kModelPrefix, pattern));
  }
  strictness.may_be_converted = {concat(kModelPrefix, "*")};
  std::vector<std::string> missing = load(folder, manifest, slices, strictness);
  tell_of_conversions(manifest, slices);
  started_from_ = folder;
  say(concat("starting from the weights of ", folder.string(), " (step ", manifest.step,
             "): ", manifest.tensors.size(), " tensors",
             missing.empty()
                 ? ""
                 : concat("; it lacks ", util::join(missing, ", "), ", as checkpoint.init_missing allows")));
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
  comm::agree(communicator_, "output folder", [&] {
    if (lock_) lock_->require_same_folder();
  });
  step_being_saved_ = position.step;
  wants_save_ = false;
  best_is_being_saved_ = best;
  attempt([&] {
    checkpoint::SaveRequest request{.root = output_folder(),
                                    .step = position.step,
                                    .layout = config_.fsdp.layout.name(),
                                    .training = training_record(config_, state_, position),
                                    .model = model_,
                                    .retention = verifies() ? checkpoint::Retention{} : retention(),
                                    .in_the_middle = [this, step = position.step] {
                                      if (hooks_.in_the_middle) hooks_.in_the_middle(step);
                                    }};
    shard::warn_of_unequal_buffers(state_.engine, "saving a checkpoint");
    std::vector<TensorSlice> slices =
        checkpoint::state_slices(state_.engine, state_.optimizer, checkpoint::SlicePurpose::kSave);
    if (options.asynchronous || !checkpoint::in_host_memory(slices)) slices = copies_.take(slices);
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

void Checkpointer::poll() {
  if (verification_ && verification_->task->done_everywhere()) settle_verification();
  if (!under_way_) return;
  attempt([&] {
    if (under_way_->advance()) succeeded(under_way_->finish());
  });
}

void Checkpointer::finish() {
  if (under_way_) attempt([&] { succeeded(under_way_->finish()); });
  if (verification_) settle_verification();
}

/// Each rank reads back the file that it wrote.
void Checkpointer::begin_verification(const fs::path& folder) {
  verification_ = std::make_unique<Verification>();
  verification_->folder = folder;
  verification_->step = step_being_saved_;
  verification_->best = best_is_being_saved_;
  auto takes = [own = checkpoint::shard_file_name(communicator_.rank()),
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
  const auto found =
      comm::all_gather_text(communicator_, done->damage, {.unit = "verification of a checkpoint"});
  const auto first = std::find_if(found.begin(), found.end(), [](const auto& text) { return !text.empty(); });
  if (first == found.end()) return done->best ? mark_best(done->step) : prune();
  if (saved_step_ == done->step) saved_step_.reset();
  if (last_saved_ == done->folder) last_saved_.clear();
  wants_save_ = true;
  std::string aside = "it could not be renamed";
  try {
    comm::agree(communicator_, "damaged checkpoint", [&] {
      if (is_first_rank()) aside = concat("renamed to ", checkpoint::set_aside(done->folder).string());
    });
  } catch (const comm::AgreedError& error) {
    aside = error.what();
  }
  failure_ = comm::AgreedError(
      util::ErrorKind::kCheckpoint,
      concat("the checkpoint of step ", done->step, " was damaged when it was read back: ", *first));
  say(concat(failure_->what(), "; ", aside, "; the next step is saved in its place"), /*warning=*/true);
}

/// With checkpoint.verify_saved, older checkpoints stay until the new one is verified.
void Checkpointer::prune() {
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
  last_saved_ = saved.folder;
  say("saved " + saved.folder.string());
  for (const fs::path& removed : saved.removed) say("removed " + removed.string());
  if (!saved.removal_failure.empty()) {
    say("old checkpoints could not be removed: " + saved.removal_failure, /*warning=*/true);
  }
  if (verifies()) return begin_verification(saved.folder);
  if (best_is_being_saved_) mark_best(step_being_saved_);
}

/// The previous best is kept until the new one is marked.
void Checkpointer::mark_best(int64_t step) {
  if (!is_first_rank()) return;
  try {
    // The checkpoint of a step that was resumed from another folder is not here.
    if (!fs::exists(output_folder() / checkpoint::step_folder_name(step))) return;
    checkpoint::mark_best(output_folder(), step);
    prune();
  } catch (const util::Error& error) {
    say(concat("step ", step, " is not marked as the best checkpoint: ", error.what()), /*warning=*/true);
  }
}

checkpoint::Retention Checkpointer::retention() const {
  checkpoint::Retention retention{.keep_last = config_.checkpoint.keep_last,
                                  .keep_every = config_.checkpoint.keep_every};
  // A best checkpoint stays, even if the config no longer asks for one. Only rank 0 removes.
  if (is_first_rank()) retention.keep_step = checkpoint::best_step(output_folder());
  return retention;
}

void Checkpointer::failed(const comm::AgreedError& error) {
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
}

void Checkpointer::say(const std::string& message, bool warning) const {
  if (!is_first_rank() || message.empty()) return;
  if (hooks_.before_speaking) hooks_.before_speaking();
  warning ? util::log_warning(message) : util::log_info(message);
}

}  // namespace fsdp::train
