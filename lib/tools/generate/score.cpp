#include "tools/generate/score.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>

#include "base/util/error.h"
#include "model/families/families.h"
#include "model/kernels/rows.h"
#include "model/nn/loss.h"
#include "tools/generate/generate.h"

namespace fsdp::generate {

double Score::perplexity() const { return std::exp(nats_per_token()); }

Score score(nn::Stage& model, const nn::ModelOptions& model_options, const std::vector<int64_t>& ids,
            const ScoreOptions& options) {
  at::NoGradGuard no_grad;
  const int64_t longest = nn::longest_sequence(model_options), length = static_cast<int64_t>(ids.size());
  const int64_t window = options.window > 0 ? options.window : longest;
  const int64_t stride = options.stride > 0 ? options.stride : std::max<int64_t>(1, window / 2);
  if (length < 2) {
    fail(ErrorKind::kUsage,
         "expected a text of at least two tokens, the first of which is not scored; found ", length,
         "; give a longer text");
  }
  if (window > longest) {
    fail(ErrorKind::kUsage, "expected a `window` of at most ", longest,
         " tokens, the positions of the model; found ", window, "; make it smaller");
  }
  if (stride > window) {
    fail(ErrorKind::kUsage, "expected a `stride` of at most the window, ", window, "; found ", stride,
         ", which would leave tokens out; make it smaller");
  }
  require_in_vocabulary(ids, model_options);
  Score score;
  for (int64_t begin = 0; score.tokens < length - 1; begin += stride) {
    if (options.stop_requested && options.stop_requested()) {
      score.stopped = true;
      break;
    }
    // Position i of the window predicts token begin + i + 1.
    const int64_t count = std::min(window, length - 1 - begin), scored = score.tokens - begin;
    const at::Tensor tokens = at::tensor(
        at::ArrayRef<int64_t>(ids).slice(static_cast<size_t>(begin), static_cast<size_t>(count + 1)));
    at::Tensor targets = tokens.narrow(0, 1, count).clone();
    targets.narrow(0, 0, scored).fill_(kernels::kIgnored);
    const at::Tensor loss = nn::loss_of(model, tokens.narrow(0, 0, count).unsqueeze(0).to(options.device),
                                        targets.unsqueeze(0).to(options.device));
    const auto mean = loss.item<double>();
    if (!std::isfinite(mean)) {
      fail(
          ErrorKind::kDiverged, "the score of the tokens ", begin + scored + 1, " to ", begin + count,
          " of the text is ", std::abs(mean),
          "; either the weights come from a run that diverged, or the range of the compute type is too small "
          "for them");
    }
    score.nats += mean * static_cast<double>(count - scored);
    score.tokens += count - scored;
    ++score.windows;
  }
  return score;
}

}  // namespace fsdp::generate
