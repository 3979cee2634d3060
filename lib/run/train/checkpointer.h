#pragma once

// Checkpointer: everything that a run does with checkpoints. It chooses and loads one, saves, and handles
// saves that fail.

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/util/progress_bar.h"
#include "comm/api/communicator.h"
#include "run/train/checkpoint_uploads.h"
#include "run/train/training_record.h"
#include "setup/config/config.h"
#include "state/checkpoint/background_task.h"
#include "state/checkpoint/save.h"
#include "state/checkpoint/state_slices.h"
#include "state/manifest/folders.h"
#include "state/manifest/manifest.h"
#include "state/weights/adapter.h"

namespace fsdp::train {

/// Every method is collective unless it says otherwise.
///
/// A save that fails does not stop the run: the training since the last save would certainly be lost. The
/// failure is reported on rank 0, the next save tries again, and at the end require_last_save() throws. A
/// save itself throws only when a peer is lost, or when the output folder is no longer the one that the run
/// took at its start (kIo on every rank).
class Checkpointer {
 public:
  /// Functions of the run, each of which may be empty.
  struct Hooks {
    /// Called on rank 0 before each message, which would otherwise interrupt a progress bar.
    std::function<void()> before_speaking;
    /// Called before the state after this step is copied beside the next one, in the thread that copies.
    std::function<void(int64_t step)> before_copy;
    /// Called as SaveRequest::in_the_middle of a save of this step.
    std::function<void(int64_t step)> in_the_middle;
    util::ByteProgress loading{};  ///< progress of reading this rank's part of a checkpoint
  };

  /// Config, state and communicator must outlive the object. Not collective.
  Checkpointer(const config::Config& config, const TrainingState& state, comm::Communicator& communicator,
               Hooks hooks);
  ~Checkpointer();

  /// Locks the output folder for this run, resumes as the config says, or starts from another run's weights,
  /// and removes the leftovers of killed runs. Throws Error(kUsage) if another run has locked the folder.
  RunPosition restore();

  /// Takes the output folder over from a rank that has left it or is lost. Called in place of restore() if
  /// the state came from the memory of the run's ranks. `origin`: origin() of the ranks before.
  void take_over(const nlohmann::json& origin);
  /// Origin of the run's first weights. Not collective.
  nlohmann::json origin() const;

  /// Keeps the description and the small files of the run's original model, for the output folder and for
  /// manifests (run/train/model_record.h). Requires: called after restore(), on rank 0. Not collective.
  void remember_model();

  /// The checkpoint that was resumed from; empty when none was. Not collective.
  const std::filesystem::path& resumed_from() const { return resumed_from_; }

  /// Saves; with checkpoint.asynchronous, the state is copied beside the next step until its update, which
  /// waits for the rest, and then written beside training. Waits first for a save that is still under way.
  void save(const RunPosition& position);

  /// Saves the best state of the run: its checkpoint is marked as the best when it is complete, and kept
  /// until another one is. A checkpoint that exists already is only marked.
  void save_best(const RunPosition& position);

  /// Waits until the state of a save under way has been copied. Steps call it before their update. Not
  /// collective.
  void finish_copy();
  /// Seconds for which steps have waited in finish_copy(). Not collective.
  double copy_seconds() const { return copy_seconds_; }

  /// Advances a save under way without waiting. Called between steps that do not save.
  void poll();

  /// Waits until no save is under way.
  void finish();

  /// Declares that no step follows: only require_last_save() then reports a save that fails, or a save of the
  /// config's last step. Not collective.
  void end_of_training() { training_is_over_ = true; }

  /// The step of the newest checkpoint of this run, including the one it resumed from. Not collective.
  std::optional<int64_t> saved_step() const { return saved_step_; }

  /// RunPosition::training_seconds of that checkpoint; 0 if there is none. Only rank 0 knows it in a run that
  /// continues from memory. Not collective.
  double saved_seconds() const { return saved_seconds_; }

  /// Whether a save is under way, or its checkpoint is being verified. Not collective, the same on every
  /// rank.
  bool is_saving() const { return under_way_ || verification_; }

  /// Whether a checkpoint of this run was found damaged when read back, and should be replaced before the
  /// next save is due (checkpoint.verify_saved). Not collective, the same on every rank.
  bool wants_save() const { return wants_save_; }

  /// The checkpoint that was saved last; empty when none was. Not collective.
  const std::filesystem::path& last_saved() const { return last_saved_; }

  /// Saves since this start.
  struct SaveCounts {
    int64_t saved = 0, failed = 0;  ///< complete saves; saves that failed or were found damaged
    double seconds = 0;             ///< time of complete saves, including what is written beside training
    std::chrono::system_clock::time_point last_saved_at{};
  };
  /// Not collective.
  const SaveCounts& save_counts() const { return counts_; }

  /// Throws the error of the last save, if it failed and none has succeeded since. Not collective, the same
  /// on every rank.
  void require_last_save() const;

 private:
  struct StartingPoint {
    std::filesystem::path resume, init;  ///< at most one is not empty
  };
  StartingPoint choose();
  bool load_chosen(const StartingPoint& choice);
  void leave_damaged(const std::filesystem::path& folder, const std::vector<std::string>& files,
                     const std::string& cause);
  void take_folder();
  void hold_folder(double patience_seconds);
  void identify_run();
  void prepare_copies();
  void set_step_pre_hook(std::function<void()> hook);
  void load_all(const std::filesystem::path& folder);
  std::vector<shard::TensorSlice> errors_to_load(checkpoint::Manifest& manifest) const;
  void load_weights(const std::filesystem::path& folder);
  /// This run's adapter; computed at its first use.
  const checkpoint::AdapterDescription& adapter();
  void require_same_adapter(const checkpoint::Manifest& manifest, const std::filesystem::path& folder);
  void tell_of_conversions(const checkpoint::Manifest& manifest,
                           const std::vector<shard::TensorSlice>& slices) const;
  std::set<std::string> names_of_early_changes(const std::vector<shard::TensorSlice>& slices) const;
  void begin_save(const RunPosition& position, bool best);
  void begin_verification(const std::filesystem::path& folder);
  void settle_verification();
  void prune();
  void remove_old();
  bool verifies() const { return config_.checkpoint.verify_saved == checkpoint::VerifySaved::kBackground; }
  void mark_best(int64_t step);
  checkpoint::Retention retention() const;
  checkpoint::Retention retention_of_all() const;
  checkpoint::ResumeChoice newest_choice() const;
  bool uploads() const { return !config_.checkpoint.upload_to.empty(); }
  void attempt(const std::function<void()>& part_of_save);
  void succeeded(const checkpoint::SavedCheckpoint& saved);
  void failed(const comm::AgreedError& error);
  void say(const std::string& message, bool warning = false) const;
  bool is_first_rank() const { return communicator_.rank() == 0; }
  std::filesystem::path output_folder() const { return config_.run.output_dir; }

  const config::Config& config_;
  TrainingState state_;
  comm::Communicator& communicator_;
  Hooks hooks_;
  std::optional<checkpoint::RunLock> lock_;  ///< held by rank 0
  std::string run_;                          ///< id of the run (state/manifest/run_identity.h), on rank 0
  RunPosition restored_;
  std::filesystem::path resumed_from_, started_from_, last_saved_;
  nlohmann::json model_;                                   ///< entry of the model in manifests, on rank 0
  std::optional<checkpoint::AdapterDescription> adapter_;  ///< only rank 0's, with lora.rank
  std::optional<int64_t> saved_step_;
  double saved_seconds_ = 0;
  int64_t step_being_saved_ = 0;
  double seconds_being_saved_ = 0;  ///< RunPosition::training_seconds of that step
  std::chrono::steady_clock::time_point save_began_;
  SaveCounts counts_;
  bool best_is_being_saved_ = false;
  bool training_is_over_ = false;
  std::optional<comm::AgreedError> failure_;
  checkpoint::HostCopies copies_;
  double copy_seconds_ = 0;
  std::shared_ptr<const comm::RankTree> tree_;           ///< made by the first save
  std::unique_ptr<checkpoint::SaveUnderWay> under_way_;  ///< the save that writes copies_
  /// The newest checkpoint while it is read back.
  struct Verification {
    std::filesystem::path folder;
    int64_t step = 0;
    bool best = false;
    std::string damage;  ///< found by this rank; written by the task
    /// The last member, so that it is destroyed before the members that it writes.
    std::unique_ptr<checkpoint::BackgroundTask> task;
  };
  std::unique_ptr<Verification> verification_;
  std::set<std::string>
      damaged_remote_;  ///< names of checkpoints in the store that could not be loaded, on rank 0
  std::unique_ptr<CheckpointUploads> uploads_;  ///< null without checkpoint.upload_to
  bool wants_save_ = false;
};

}  // namespace fsdp::train
