#pragma once

// Everything that a run does with checkpoints: choosing one and loading it, saving, and what follows when a
// save fails.

#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/background_task.h"
#include "checkpoint/folders.h"
#include "checkpoint/save.h"
#include "checkpoint/state_slices.h"
#include "comm/communicator.h"
#include "config/config.h"
#include "train/training_record.h"

namespace fsdp::train {

/// Every method is collective unless it says otherwise.
///
/// A save that fails is no reason to stop: what was trained since the last one would be lost for certain. It
/// is reported on rank 0, the next save is the next try, and require_last_save() tells at the end. Only two
/// things are thrown out of a save: the loss of a peer, and that the output folder is no longer the one that
/// the run took at its start (kIo on every rank).
class Checkpointer {
 public:
  /// What others do while it works; each may be empty.
  struct Hooks {
    /// On rank 0 before a message that a save brings, so that it does not land in the middle of a progress
    /// bar.
    std::function<void()> before_speaking;
    /// SaveRequest::in_the_middle of a save of this step.
    std::function<void(int64_t step)> in_the_middle;
  };

  /// Config and communicator must outlive the object. Not collective.
  Checkpointer(const config::Config& config, const TrainingState& state, comm::Communicator& communicator,
               Hooks hooks);

  /// Takes the output folder for this run, resumes as the config says, or starts from another run's weights,
  /// and removes what killed runs left there. kUsage when another run has the folder.
  RunPosition restore();

  /// Keeps in the output folder, and for the manifests of checkpoints, what the model that the run begins
  /// with has beside its weights (train/model_record.h). After restore(), on rank 0, not collective.
  void remember_model();

  /// The checkpoint that was resumed from; empty when none was. Not collective.
  const std::filesystem::path& resumed_from() const { return resumed_from_; }

  /// Saves, or with checkpoint.asynchronous copies the state and lets the writing go on beside training; a
  /// save that is still under way is waited for first, so that there are never two.
  void save(const RunPosition& position);

  /// The same for a state that is the best of the run: its checkpoint is marked as such when it is complete,
  /// and stays until another is. One that is saved already is only marked.
  void save_best(const RunPosition& position);

  /// To be called at every other step boundary: carries a save under way further without waiting.
  void poll();

  /// Waits until no save is under way.
  void finish();

  /// No step follows: a save that fails from now on, as one of the config's last step, is told by
  /// require_last_save() alone. Not collective.
  void end_of_training() { training_is_over_ = true; }

  /// The step of the newest checkpoint of this run, the one it resumed from included. Not collective.
  std::optional<int64_t> saved_step() const { return saved_step_; }

  /// Whether a checkpoint of this run was read back damaged and the next save should not wait until it is due
  /// (checkpoint.verify_saved). Not collective, alike on every rank.
  bool wants_save() const { return wants_save_; }

  /// The checkpoint that was saved last; empty when none was. Not collective.
  const std::filesystem::path& last_saved() const { return last_saved_; }

  /// Throws what the last save failed with, if it did and none has succeeded since. Not collective, alike on
  /// every rank.
  void require_last_save() const;

 private:
  struct Choice {
    std::filesystem::path resume, init;  ///< at most one is not empty
  };
  Choice choose();
  bool load_chosen(const Choice& choice);
  void leave_damaged(const std::filesystem::path& folder, const std::vector<std::string>& files,
                     const std::string& cause);
  void take_folder();
  void load_all(const std::filesystem::path& folder);
  /// For a checkpoint without averages: they are the weights that were loaded.
  void start_averages();
  void load_weights(const std::filesystem::path& folder);
  void remove_leftovers();
  void require_same_folder();
  void begin_save(const RunPosition& position, bool best);
  void begin_verification(const std::filesystem::path& folder);
  void settle_verification();
  void prune();
  bool verifies() const { return config_.checkpoint.verify_saved == checkpoint::VerifySaved::kBackground; }
  void mark_best(int64_t step);
  checkpoint::Retention retention() const;
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
  std::optional<checkpoint::RunLock> lock_;  ///< rank 0's
  RunPosition restored_;
  std::filesystem::path resumed_from_, started_from_, last_saved_;
  nlohmann::json model_;  ///< of manifests; rank 0's counts
  std::optional<int64_t> saved_step_;
  int64_t step_being_saved_ = 0;
  bool best_is_being_saved_ = false;
  bool training_is_over_ = false;
  std::optional<comm::AgreedError> failure_;
  checkpoint::HostCopies copies_;
  std::unique_ptr<checkpoint::SaveUnderWay> under_way_;  ///< from copies_
  /// The newest checkpoint while it is read back.
  struct Verification {
    std::filesystem::path folder;
    int64_t step = 0;
    bool best = false;
    std::string damage;                                ///< that this rank found; the thread's until it ended
    std::unique_ptr<checkpoint::BackgroundTask> task;  ///< behind what it writes, so that it ends before
  };
  std::unique_ptr<Verification> verification_;
  bool wants_save_ = false;
};

}  // namespace fsdp::train
