#include "tools/generate/generate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>

#include "base/util/clock.h"
#include "base/util/error.h"
#include "model/families/families.h"
#include "model/nn/key_value_cache.h"

namespace fsdp::generate {
namespace {

using Clock = std::chrono::steady_clock;

void check(const nn::ModelOptions& model, const std::vector<int64_t>& prompt,
           const GenerationOptions& options) {
  if (prompt.empty()) {
    fail(ErrorKind::kUsage, "the prompt must have at least one token, but is empty; give some text");
  }
  require_in_vocabulary(prompt, model);
  FSDP_CHECK(options.max_new_tokens > 0 && options.num_samples > 0);
  // The sum of prompt and new tokens could overflow.
  if (const int64_t longest = nn::longest_sequence(model); options.max_new_tokens > longest) {
    fail(ErrorKind::kUsage, "at most ", longest,
         " new tokens are possible, the positions of the model (max_position_embeddings), but ",
         options.max_new_tokens, " are requested; ask for fewer");
  }
}

/// Samples of one prompt that are computed together. Each is a row of the model's input until it ends.
class SampleRows {
 public:
  SampleRows(nn::Stage& model, const nn::ModelOptions& model_options, const GenerationOptions& options,
             const GenerationHooks& hooks, std::vector<Sample>& samples)
      : model_(model), model_options_(model_options), options_(options), hooks_(hooks), samples_(samples) {}

  /// Returns false if stop_requested() ended the samples.
  bool run(const std::vector<int64_t>& prompt, int64_t first, int64_t count) {
    const Clock::time_point begin = Clock::now();
    nn::KeyValueCache cache(model_options_, static_cast<int64_t>(prompt.size()) + options_.max_new_tokens);
    at::Tensor scores = scores_after(at::tensor(prompt).unsqueeze(0), cache);
    if (count > 1) {
      cache.select_rows(at::zeros({count}, at::TensorOptions(at::kLong).device(options_.device)));
      scores = scores.expand({count, scores.size(1)});
    }
    for (int64_t sample = first; sample < first + count; ++sample) {
      under_way_.push_back({sample, Sampler(options_.sampling, options_.seed, concat("sample ", sample))});
    }
    while (true) {
      at::Tensor ids = choose(scores);
      const std::vector<int64_t> staying = take(ids, begin);
      if (hooks_.stop_requested && hooks_.stop_requested()) {
        for (int64_t row : staying) sample_of(row).ending = Ending::kStopped;
        return false;
      }
      if (staying.empty()) return true;
      if (staying.size() < under_way_.size()) {
        const at::Tensor rows = at::tensor(staying);
        cache.select_rows(rows.to(options_.device));
        ids = ids.index_select(0, rows);
        std::vector<SampleRow> rows_left;
        for (int64_t i : staying) rows_left.push_back(std::move(under_way_[static_cast<size_t>(i)]));
        under_way_ = std::move(rows_left);
      }
      scores = scores_after(ids.unsqueeze(1), cache);
    }
  }

 private:
  struct SampleRow {
    int64_t sample;
    Sampler sampler;
  };

  /// Copies scores to host memory, where the next token is chosen.
  at::Tensor scores_after(const at::Tensor& ids, nn::KeyValueCache& cache) {
    const at::Tensor input = ids.to(options_.device);
    if (hooks_.on_input) hooks_.on_input(input);
    return nn::next_scores(model_, input, cache).to(at::kCPU);
  }

  at::Tensor choose(const at::Tensor& scores) {
    const int64_t allowed = options_.allowed_ids > 0 ? options_.allowed_ids : model_options_.vocab_size;
    at::Tensor ids = at::empty({static_cast<int64_t>(under_way_.size())}, at::kLong);
    for (size_t i = 0; i < under_way_.size(); ++i) {
      ids.data_ptr<int64_t>()[i] =
          under_way_[i].sampler.choose(scores.select(0, static_cast<int64_t>(i)), allowed);
    }
    if (hooks_.agree) hooks_.agree(ids);
    return ids;
  }

  /// Adds the tokens to their samples and returns the rows that continue.
  std::vector<int64_t> take(const at::Tensor& ids, Clock::time_point begin) {
    std::vector<int64_t> staying;
    for (size_t i = 0; i < under_way_.size(); ++i) {
      const int64_t id = ids.const_data_ptr<int64_t>()[i], index = under_way_[i].sample;
      Sample& sample = sample_of(static_cast<int64_t>(i));
      sample.seconds = util::seconds_since(begin);
      if (std::find(options_.stop_ids.begin(), options_.stop_ids.end(), id) != options_.stop_ids.end()) {
        sample.ending = Ending::kEndOfText;
        continue;
      }
      sample.ids.push_back(id);
      if (hooks_.on_token) hooks_.on_token(index, id);
      if (static_cast<int64_t>(sample.ids.size()) == options_.max_new_tokens) {
        sample.ending = Ending::kLength;
      } else {
        staying.push_back(static_cast<int64_t>(i));
      }
    }
    return staying;
  }

  Sample& sample_of(int64_t row) {
    return samples_[static_cast<size_t>(under_way_[static_cast<size_t>(row)].sample)];
  }

  nn::Stage& model_;
  const nn::ModelOptions& model_options_;
  const GenerationOptions& options_;
  const GenerationHooks& hooks_;
  std::vector<Sample>& samples_;
  std::vector<SampleRow> under_way_;
};

}  // namespace

void require_in_vocabulary(const std::vector<int64_t>& ids, const nn::ModelOptions& model) {
  for (int64_t id : ids) {
    if (id >= 0 && id < model.vocab_size) continue;
    fail(ErrorKind::kUsage,
         "tokens of the text must be less than the model's vocab_size = ", model.vocab_size, ", but one is ",
         id, "; the tokenizer is not the one that the model was trained with");
  }
}

std::vector<Sample> generate(nn::Stage& model, const nn::ModelOptions& model_options,
                             const std::vector<int64_t>& prompt, const GenerationOptions& options,
                             const GenerationHooks& hooks) {
  at::NoGradGuard no_grad;
  check(model_options, prompt, options);
  std::vector<Sample> samples;
  for (int64_t first = 0; first < options.num_samples; first += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, options.num_samples - first);
    samples.resize(static_cast<size_t>(first + count));
    if (!SampleRows(model, model_options, options, hooks, samples).run(prompt, first, count)) break;
  }
  return samples;
}

}  // namespace fsdp::generate
