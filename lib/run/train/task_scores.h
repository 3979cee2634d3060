#pragma once

// The tasks of a run (evaluation.tasks): files of questions that the sharded model answers.

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "comm/api/communicator.h"
#include "comm/api/mesh.h"
#include "data/tokenizers/tokenizer.h"
#include "model/nn/stage.h"
#include "setup/config/config.h"
#include "tools/generate/tasks.h"

namespace fsdp::train {

struct TaskResult {
  std::string task;
  int64_t questions = 0;
  std::vector<generate::TaskMetric> metrics;
};

/// Returns "task NAME: acc 0.4312 (+- 0.0155) over 1,000 questions".
std::string task_text(const TaskResult& result);
/// Returns the results as numbers of a line of metrics: "task/NAME/acc", "task/NAME/acc_stderr".
nlohmann::ordered_json task_numbers(const std::vector<TaskResult>& results);

class TaskScores {
 public:
  /// Reads evaluation.tasks and data.tokenizer. Throws Error(kUsage) for files that are no tasks, for two of
  /// the same name, and for questions with tokens outside the model's vocabulary.
  explicit TaskScores(const config::Config& config);

  bool empty() const { return tasks_.empty(); }

  /// Answers the questions of all tasks with the sharded model: each rank computes its share of the scores,
  /// and all compute texts together. The same on every rank; nothing if `stop_requested`, which is
  /// collective, returned true. Collective. Throws comm::AgreedError(kDiverged) for scores that are not
  /// finite.
  std::optional<std::vector<TaskResult>> of(nn::Stage& model, const comm::Mesh& mesh,
                                            const std::function<bool()>& stop_requested = nullptr) const;

 private:
  struct EncodedTask {
    generate::Task task;
    std::vector<generate::EncodedRequest> requests;  ///< of answers: contexts only
  };
  using Metrics = std::optional<std::vector<generate::TaskMetric>>;
  Metrics by_scores(const EncodedTask& of, nn::Stage& model, const comm::Mesh& mesh,
                    const std::function<bool()>& stop_requested) const;
  Metrics by_texts(const EncodedTask& of, nn::Stage& model, comm::Communicator& communicator,
                   const std::function<bool()>& stop_requested) const;

  nn::ModelOptions model_;
  std::unique_ptr<data::Tokenizer> tokenizer_;
  std::vector<EncodedTask> tasks_;
};

}  // namespace fsdp::train
