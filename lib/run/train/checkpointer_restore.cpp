// The first state of a run: a checkpoint or initial weights. checkpointer.cpp has the saves.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "base/dtype/dtype.h"
#include "base/objects/object_name.h"
#include "base/util/clock.h"
#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/nearest_pattern.h"
#include "base/util/system.h"
#include "base/util/text.h"
#include "run/train/arithmetic.h"
#include "run/train/checkpointer.h"
#include "run/train/local_steps.h"
#include "run/train/sample_position.h"
#include "setup/config/config.h"
#include "shard/engine/engine.h"
#include "state/checkpoint/error_slices.h"
#include "state/checkpoint/load.h"
#include "state/checkpoint/state_slices.h"
#include "state/convert/inspect.h"
#include "state/manifest/folders.h"
#include "state/manifest/run_identity.h"
#include "state/outer/outer_slices.h"
#include "state/weights/weights.h"

namespace fsdp::train {
namespace fs = std::filesystem;
using checkpoint::Manifest;
using shard::TensorSlice;

namespace {

constexpr std::string_view kModelPrefix = "model/";

/// Whether a tensor of a checkpoint is a weight whose parameter matches one of the patterns. An empty list
/// matches all.
bool is_weight(const std::string& name, const std::vector<std::string>& patterns) {
  if (!name.starts_with(kModelPrefix)) return false;
  return patterns.empty() || util::matches_any(name.substr(kModelPrefix.size()), patterns);
}

/// Returns the seconds to wait for the folder. When the launcher has restarted all processes, the processes
/// of a node that was lost silently may hold the folder until their own launcher has ended them. 0 at the
/// first start.
double patience_after_restart() {
  constexpr double kSeconds = 60;
  const char* restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return restarts != nullptr && std::atoi(restarts) > 0 ? kSeconds : 0;
}

/// Calls checkpoint::load_slices(), through host memory if the state is on a device.
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

void Checkpointer::require_same_adapter(const Manifest& manifest, const fs::path& folder) {
  const std::string where = (folder / checkpoint::kManifestName).string();
  const auto found = checkpoint::described_adapter(manifest.model, where);
  if (found.has_value() != config_.lora.is_on()) {
    fail(ErrorKind::kCheckpoint, "lora.rank must be ", found ? found->lora.rank : 0, ", as in ", where,
         ", but is ", config_.lora.rank, found ? "" : ", and the checkpoint holds all weights",
         "; restore it, or start a new run from that checkpoint with model.init_from and another "
         "run.output_dir");
  }
  if (found) checkpoint::require_same_adapter(*found, adapter(), where);
}

RunPosition Checkpointer::restore() {
  while (!load_chosen(choose())) {
  }
  comm::agree(communicator_, "output folder", [&] {
    hold_folder(/*patience_seconds=*/0);
    identify_run();
  });
  if (state_.outer != nullptr) state_.outer->begin();
  prepare_copies();
  return restored_;
}

/// Waits until another process, for example one that was killed, has released the folder. Not collective.
void Checkpointer::hold_folder(double patience_seconds) {
  if (!is_first_rank()) return;
  const auto began = std::chrono::steady_clock::now();
  while (!lock_) {
    try {
      take_folder();
    } catch (const util::Error&) {
      if (util::seconds_since(began) >= patience_seconds) throw;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  run_ = checkpoint::recorded_run(output_folder());
  const checkpoint::Leftovers leftovers = checkpoint::remove_leftovers(output_folder(), run_);
  for (const fs::path& removed : leftovers.removed) {
    say(concat("removed ", removed.string(), ", left unfinished by a run that was stopped"));
  }
  for (const fs::path& aside : leftovers.set_aside) {
    say(concat(
            "found a step's folder without ", checkpoint::kManifestName, " and renamed it to ",
            aside.string(),
            ": it is not known to be an unfinished save of this run; restore its manifest from a copy, or remove it"),
        /*warning=*/true);
  }
}

/// Gives the run its id: the previous id if it goes on in its own folder, otherwise a new one. Not
/// collective.
void Checkpointer::identify_run() {
  if (!is_first_rank()) return;
  std::error_code error;
  const bool is_sent =
      uploads() && objects::is_remote(resumed_from_.string()) &&
      objects::folder_of(resumed_from_.string()) == objects::folder_of(config_.checkpoint.upload_to + "/x");
  const bool goes_on = is_sent || (!resumed_from_.empty() &&
                                   fs::equivalent(resumed_from_.parent_path(), output_folder(), error));
  if (goes_on && !run_.empty()) return;
  run_ = goes_on ? checkpoint::run_of(checkpoint::read_manifest(resumed_from_).training) : "";
  if (run_.empty()) run_ = util::random_id();
  checkpoint::record_run(output_folder(), run_);
}

void Checkpointer::prepare_copies() {
  if (!config_.checkpoint.asynchronous) return;
  copies_.prepare(state_.slices_to_save(), /*beside=*/true);
  set_step_pre_hook([this] { finish_copy(); });
}

void Checkpointer::take_over(const nlohmann::json& origin) {
  constexpr double kPatienceSeconds = 20;
  started_from_ = origin.at("started_from").get<std::string>();
  resumed_from_ = origin.at("resumed_from").get<std::string>();
  std::string newest;
  comm::agree(communicator_, "output folder", [&] {
    hold_folder(kPatienceSeconds);
    if (!is_first_rank()) return;
    for (const auto& found : checkpoint::find_checkpoints(output_folder()).complete) {
      if (checkpoint::is_of_run(found, run_)) newest = found.folder.filename().string();
    }
    if (newest.empty()) return;
    saved_seconds_ =
        checkpoint::read_manifest(output_folder() / newest).training.value("training_seconds", 0.0);
  });
  prepare_copies();
  newest = comm::all_gather_text(communicator_, newest, {.unit = "newest checkpoint"}).front();
  if (newest.empty()) return;
  last_saved_ = resumed_from_ = output_folder() / newest;
  saved_step_ = checkpoint::step_of_folder_name(newest);
}

nlohmann::json Checkpointer::origin() const {
  return {{"started_from", started_from_.string()}, {"resumed_from", resumed_from_.string()}};
}

/// Returns false if the checkpoint was damaged and has been renamed, so that an older one is to be tried.
bool Checkpointer::load_chosen(const StartingPoint& choice) {
  constexpr const char* kPurpose = "loading the checkpoint";
  std::string file, cause;
  comm::agree(communicator_, kPurpose, [&] {
    try {
      if (!choice.resume.empty()) load_all(choice.resume);
      if (!choice.init.empty()) load_weights(choice.init);
    } catch (const checkpoint::DamageError& error) {
      if (config_.checkpoint.resume != "auto" || choice.resume.empty()) throw;
      file = error.file().lexically_relative(choice.resume).string();
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

/// Renames the folder only if rank 0 finds damage too: a rank with faulty memory or a faulty link to the
/// storage would see damage in one good checkpoint after another.
void Checkpointer::leave_damaged(const fs::path& folder, const std::vector<std::string>& files,
                                 const std::string& cause) {
  if (objects::is_remote(folder.string())) {
    damaged_remote_.insert(folder.string());
    return say(concat("passing over the damaged checkpoint ", folder.string(), ": ", cause),
               /*warning=*/true);
  }
  fs::path aside;
  comm::agree(communicator_, "damaged checkpoint", [&] {
    if (!is_first_rank()) return;
    const std::string seen = checkpoint::damage_in(
        folder, [&](const auto& name) { return std::find(files.begin(), files.end(), name) != files.end(); });
    if (seen.empty()) {
      fail(ErrorKind::kIo, cause, "; but ", folder.string(),
           " is intact when rank 0 reads it again: check the memory and the storage of the "
           "machines of this run");
    }
    const auto found = checkpoint::find_checkpoints(output_folder()).complete;
    const int64_t step = checkpoint::step_of_folder_name(folder.filename().string()).value_or(0);
    if (std::none_of(found.begin(), found.end(), [&](const auto& other) { return other.step < step; })) {
      fail(ErrorKind::kCheckpoint, cause, "; no older checkpoint is left in ", output_folder().string(),
           ": start from scratch with checkpoint.resume=never or another run.output_dir, unless "
           "there is a copy");
    }
    aside = checkpoint::set_aside(folder, checkpoint::kDamaged);
  });
  say(concat("renamed the damaged checkpoint ", folder.string(), " to ", aside.string(), ": ", cause),
      /*warning=*/true);
}

/// Rank 0 chooses, so that a file system on which ranks see different folders cannot split the run.
Checkpointer::StartingPoint Checkpointer::choose() {
  constexpr const char* kPurpose = "choice of a checkpoint";
  std::string resume, init;
  comm::agree(communicator_, kPurpose, [&] {
    if (!is_first_rank()) return;
    // The folder is locked before the choice, because another run might remove the chosen checkpoint. A
    // folder that does not exist is made later, once no check can refuse the run any more.
    if (util::is_there(output_folder())) take_folder();
    const checkpoint::ResumeChoice choice = newest_choice();
    for (const checkpoint::TornCheckpoint& damaged : choice.damaged) {
      say(concat("renamed the damaged checkpoint ", damaged.folder.string(), " to ",
                 checkpoint::set_aside(damaged.folder, checkpoint::kDamaged).string(), ": ", damaged.reason),
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

/// Returns the checkpoint that the config asks for: in the run's folder, or a newer one that was sent to a
/// store, as for a run that goes on on another machine. Not collective.
checkpoint::ResumeChoice Checkpointer::newest_choice() const {
  const std::string &resume = config_.checkpoint.resume, &store = config_.checkpoint.upload_to;
  if (!uploads() || (resume != "auto" && resume != "latest")) {
    return checkpoint::resolve_resume(output_folder(), resume);
  }
  std::string passed_over;
  const auto sent = checkpoint::newest_remote_checkpoint(store, passed_over, damaged_remote_);
  // The store may have the checkpoint that "latest" requires.
  checkpoint::ResumeChoice choice = checkpoint::resolve_resume(output_folder(), sent ? "auto" : resume);
  const int64_t own_step =
      choice.folder ? checkpoint::step_of_folder_name(choice.folder->filename().string()).value_or(-1) : -1;
  if (!sent || sent->step <= own_step) return choice;
  choice.folder = sent->folder;
  choice.message = concat(
      "resuming from ", sent->folder.string(), ", the newest complete checkpoint of ", store,
      own_step < 0 ? "" : concat("; ", output_folder().string(), " has only step ", own_step), passed_over);
  return choice;
}

void Checkpointer::take_folder() {
  util::make_writable_folder(output_folder());
  const auto began = std::chrono::steady_clock::now();
  while (!lock_) {
    try {
      lock_.emplace(output_folder());
    } catch (const util::Error&) {
      if (util::seconds_since(began) >= patience_after_restart()) throw;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }
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
  ResumedPosition position;
  if (!state_.sampling.is_null()) {
    position =
        resumed_position(manifest.training, state_.sampling, config_.data.allow_changed, folder.string());
  }
  const auto is_average = [](const auto& item) { return item.first.starts_with(checkpoint::kAveragePrefix); };
  const bool has_averages = std::any_of(manifest.tensors.begin(), manifest.tensors.end(), is_average);
  const bool keeps_averages = config_.optimizer.ema_decay > 0;
  checkpoint::LoadOptions strictness{.refuse_unexpected = true, .progress = hooks_.loading};
  // Training does not depend on averages, so optimizer.ema_decay may be switched on and off.
  if (!keeps_averages && has_averages) std::erase_if(manifest.tensors, is_average);
  if (keeps_averages && !has_averages) {
    strictness.may_be_missing.push_back(concat(checkpoint::kAveragePrefix, "*"));
  }
  strictness.may_be_converted = {concat(kModelPrefix, "*"), concat(checkpoint::kOptimizerPrefix, "*")};
  std::optional<optim::OuterSlices> of_replica;
  if (state_.outer != nullptr) {
    of_replica = optim::outer_slices_to_load(*state_.outer, manifest);
  } else if (optim::remove_outer_tensors(manifest)) {
    say(concat(folder.string(),
               " is of a run with training.local_steps: this run goes on from its outer weights "
               "and the optimizer's states of replica 0"));
  }
  std::vector<TensorSlice> slices =
      of_replica ? of_replica->slices
                 : checkpoint::state_slices(state_.engine, state_.optimizer, checkpoint::SlicePurpose::kLoad);
  std::ranges::move(errors_to_load(manifest), std::back_inserter(slices));
  load(folder, manifest, slices, strictness);
  if (of_replica) {
    const int64_t local_steps = config_.training.local_steps;
    state_.outer->loaded(of_replica->has_local_weights, of_replica->has_delta,
                         manifest.step / local_steps * local_steps);
  }
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
  if (state_.outer != nullptr) manifest.training = record_of_replica(manifest.training, *state_.outer);
  restored_ = restore_training_record(manifest.training, manifest.step, state_,
                                      (folder / checkpoint::kManifestName).string(),
                                      /*same_data=*/position.note.empty() && !config_.data.allow_changed);
  if (!position.note.empty()) {
    restored_.samples_seen = position.samples_seen;
    say(position.note, /*warning=*/!position.is_exact);
  }
  resumed_from_ = folder;
  saved_step_ = manifest.step;
  saved_seconds_ = restored_.training_seconds;
}

/// Returns the errors of quantized gradients, if those of the manifest are of the same ranks and units.
/// Otherwise takes them out of the manifest: no other rank can use a rank's errors, and training does not
/// need them.
std::vector<TensorSlice> Checkpointer::errors_to_load(Manifest& manifest) const {
  const auto is_error = [](const auto& item) { return item.first.starts_with(checkpoint::kErrorPrefix); };
  std::vector<TensorSlice> errors = checkpoint::error_slices(state_.engine);
  const auto stored = std::ranges::count_if(manifest.tensors, is_error);
  const bool fits = std::ranges::all_of(errors, [&](const TensorSlice& slice) {
    const auto found = manifest.tensors.find(slice.name);
    return found != manifest.tensors.end() && found->second.shape == slice.shape;
  });
  if (fits && std::ssize(errors) == stored) return errors;
  std::erase_if(manifest.tensors, is_error);
  if (errors.empty()) {
    say("the errors of quantized gradients in the checkpoint are ignored, because fsdp.error_feedback is false");
  } else {
    say(concat("the errors of quantized gradients begin at zero, because the checkpoint has ",
               stored == 0 ? "none" : "those of another number of processes, or of other units"));
  }
  return {};
}

/// Tells that weights and states are kept in the types of fsdp.param_storage and optimizer.state_dtype,
/// whatever they were before.
void Checkpointer::tell_of_conversions(const Manifest& manifest,
                                       const std::vector<TensorSlice>& slices) const {
  std::map<std::array<std::string, 3>, int64_t> numbers;  // by types and key
  for (const TensorSlice& slice : slices) {
    const auto stored = manifest.tensors.find(slice.name);
    if (stored == manifest.tensors.end() || stored->second.dtype == slice.dtype()) continue;
    const bool is_state = slice.name.starts_with(checkpoint::kOptimizerPrefix);
    ++numbers[{util::dtype_name(stored->second.dtype), slice.coded ? "int8" : util::dtype_name(slice.dtype()),
               is_state ? "optimizer.state_dtype" : "fsdp.param_storage"}];
  }
  for (const auto& [which, number] : numbers) {
    const auto& [stored, kept, key] = which;
    say(concat(number, number == 1 ? " tensor" : " tensors", " of the checkpoint in ", stored,
               number == 1 ? " is" : " are", " kept in ", kept, " from now on",
               kept == "float32" ? "" : ", rounded to nearest", " (", key, ")"));
  }
}

void Checkpointer::load_weights(const fs::path& folder) {
  const checkpoint::CheckpointOptions& options = config_.checkpoint;
  std::vector<std::string> names;
  for (const shard::Segment& segment : state_.engine.segments()) names.push_back(segment.name);
  const std::string expected =
      concat("names of parameters", names.empty() ? "" : " such as " + names.front());
  util::require_matches("checkpoint.init_only", options.init_only, names, expected);
  util::require_matches("checkpoint.init_missing", options.init_missing, names, expected);
  Manifest manifest = checkpoint::read_manifest(folder);
  std::erase_if(manifest.tensors,
                [&](const auto& item) { return !is_weight(item.first, options.init_only); });
  std::vector<TensorSlice> slices =
      checkpoint::state_slices(state_.engine, state_.optimizer, checkpoint::SlicePurpose::kLoad);
  std::erase_if(slices, [&](const TensorSlice& slice) { return !is_weight(slice.name, options.init_only); });
  checkpoint::LoadOptions strictness{.refuse_unexpected = true, .progress = hooks_.loading};
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

}  // namespace fsdp::train
