#include "run/train/task_scores.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/util/error.h"
#include "base/util/text.h"
#include "model/families/families.h"
#include "tools/generate/generate.h"
#include "tools/generate/load.h"
#include "tools/generate/text_until.h"

namespace fsdp::train {
namespace {

constexpr int64_t kNewTokens = 256;

/// Adds up what the ranks have scored. `copies`: ranks that score the same.
std::vector<generate::RequestScore> summed(const std::vector<generate::RequestScore>& own,
                                           comm::Communicator& communicator, int64_t copies) {
  const auto count = static_cast<int64_t>(own.size());
  const at::Tensor sums = at::zeros({3, count}, at::kDouble);
  double* const likelihoods = sums[0].data_ptr<double>();
  double* const tokens = sums[1].data_ptr<double>();
  double* const others = sums[2].data_ptr<double>();
  for (int64_t i = 0; i < count; ++i) {
    const generate::RequestScore& score = own[static_cast<size_t>(i)];
    likelihoods[i] = score.log_likelihood;
    tokens[i] = static_cast<double>(score.tokens);
    others[i] = score.is_greedy ? 0 : 1;
  }
  communicator.check();
  communicator.all_reduce(sums, comm::ReduceOp::kSum, {.unit = "scores of a task"})->wait();
  std::vector<generate::RequestScore> all(own.size());
  for (int64_t i = 0; i < count; ++i) {
    all[static_cast<size_t>(i)] = {.log_likelihood = likelihoods[i] / static_cast<double>(copies),
                                   .tokens = std::llround(tokens[i]) / copies,
                                   .is_greedy = others[i] == 0};
  }
  return all;
}

}  // namespace

std::string task_text(const TaskResult& result) {
  return concat("task ", result.task, ": ", generate::metrics_text(result.metrics), " over ",
                util::with_commas(result.questions), result.questions == 1 ? " question" : " questions");
}

nlohmann::ordered_json task_numbers(const std::vector<TaskResult>& results) {
  nlohmann::ordered_json line = nlohmann::ordered_json::object();
  for (const TaskResult& result : results) {
    for (const generate::TaskMetric& metric : result.metrics) {
      const std::string key = concat("task/", result.task, "/", metric.name);
      line[key] = metric.value;
      if (metric.standard_error) line[key + "_stderr"] = *metric.standard_error;
    }
  }
  return line;
}

TaskScores::TaskScores(const config::Config& config) : model_(config.model) {
  if (config.evaluation.tasks.empty()) return;
  tokenizer_ = data::make_tokenizer(config.data.tokenizer);
  std::set<std::string> names;
  for (const std::string& file : config.evaluation.tasks) {
    EncodedTask task{generate::Task(file), {}};
    if (!names.insert(task.task.name()).second) {
      fail(ErrorKind::kUsage,
           "evaluation.tasks: expected files of different names, by which their metrics are "
           "told apart; found two of the name ",
           task.task.name(), "; rename one");
    }
    if (task.task.kind() == generate::Task::Kind::kAnswers && config.mesh.model != 1) {
      fail(ErrorKind::kUsage, file,
           ": expected questions with choices, or texts, with mesh.model; found answers, which ",
           "a model on one rank alone generates; leave one of the two out");
    }
    for (const generate::Request& request : task.task.requests()) {
      task.requests.push_back(
          task.task.kind() == generate::Task::Kind::kAnswers
              ? generate::EncodedRequest{generate::encode_prompt(*tokenizer_, request.context), {}}
              : generate::encode_request(*tokenizer_, request));
      generate::require_in_vocabulary(task.requests.back().context, model_);
      generate::require_in_vocabulary(task.requests.back().continuation, model_);
    }
    tasks_.push_back(std::move(task));
  }
}

std::optional<std::vector<TaskResult>> TaskScores::of(nn::Stage& model, const comm::Mesh& mesh,
                                                      const std::function<bool()>& stop_requested) const {
  std::vector<TaskResult> results;
  for (const EncodedTask& task : tasks_) {
    Metrics found = task.task.kind() == generate::Task::Kind::kAnswers
                        ? by_texts(task, model, *mesh.world(), stop_requested)
                        : by_scores(task, model, mesh, stop_requested);
    if (!found) return std::nullopt;
    results.push_back({task.task.name(), task.task.questions(), *std::move(found)});
  }
  return results;
}

TaskScores::Metrics TaskScores::by_scores(const EncodedTask& of, nn::Stage& model, const comm::Mesh& mesh,
                                          const std::function<bool()>& stop_requested) const {
  comm::Communicator& communicator = *mesh.world();
  const comm::MeshShape& shape = mesh.shape();
  const comm::MeshCoordinate place = shape.coordinate_of(communicator.rank());
  const auto own = generate::score_requests(model, model_, of.requests,
                                            {.length_multiple = shape.model,
                                             .device = communicator.device(),
                                             .share = place.dcn * shape.data + place.data,
                                             .shares = shape.row_ranks(),
                                             .stop_requested = stop_requested});
  if (!own) return std::nullopt;
  const auto scores = summed(*own, communicator, shape.model);
  for (size_t i = 0; i < scores.size(); ++i) {
    if (std::isfinite(scores[i].log_likelihood)) continue;
    throw comm::AgreedError(
        ErrorKind::kDiverged,
        concat("task ", of.task.name(), ": expected finite log-likelihoods, found ", scores[i].log_likelihood,
               " for request ", i + 1,
               "; the weights are not usable, or the range of mixed_precision.param_dtype is "
               "too small for them"));
  }
  return of.task.metrics(scores);
}

TaskScores::Metrics TaskScores::by_texts(const EncodedTask& of, nn::Stage& model,
                                         comm::Communicator& communicator,
                                         const std::function<bool()>& stop_requested) const {
  const std::vector<int64_t> stops = generate::stop_ids({}, *tokenizer_);
  const int64_t longest = nn::longest_sequence(model_);
  // Ranks on different CPUs may round differently and would then choose different tokens.
  const auto agree = [&](at::Tensor& ids) {
    communicator.broadcast(ids, /*root=*/0, {.unit = "chosen token"})->wait();
  };
  std::vector<std::string> texts;
  for (size_t i = 0; i < of.requests.size(); ++i) {
    const generate::Request& request = of.task.requests()[i];
    generate::GenerationOptions options{.sampling = {.temperature = 0}, .stop_ids = stops};
    options.max_new_tokens = std::min(request.max_new_tokens.value_or(kNewTokens), longest / 2);
    options.allowed_ids = std::min(tokenizer_->vocab_size(), model_.vocab_size);
    options.device = communicator.device();
    std::vector<int64_t> ids = of.requests[i].context;
    const int64_t room = longest - options.max_new_tokens;
    if (std::ssize(ids) > room) ids.erase(ids.begin(), ids.end() - room);
    generate::TextUntil text(generate::decoder_after(*tokenizer_, ids), request.until);
    bool stopped = false;
    const auto stop = [&] {
      stopped = stop_requested && stop_requested();
      return stopped || text.has_ended();
    };
    generate::generate(
        model, model_, ids, options,
        {.on_token = [&](int64_t, int64_t id) { text.push(id); }, .stop_requested = stop, .agree = agree});
    if (stopped) return std::nullopt;
    texts.push_back(text.finish());
  }
  return of.task.metrics(texts);
}

}  // namespace fsdp::train
