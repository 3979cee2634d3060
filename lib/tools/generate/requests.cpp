#include "tools/generate/requests.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <istream>
#include <span>
#include <utility>

#include "base/util/error.h"
#include "model/families/families.h"
#include "model/kernels/rows.h"
#include "model/nn/loss.h"
#include "tools/generate/generate.h"
#include "tools/generate/load.h"
#include "tools/generate/request_line.h"

namespace fsdp::generate {
namespace {

constexpr const char* kScored = R"({"context": "...", "continuation": "..."} or {"text": "..."})";
constexpr const char* kGenerated = R"({"context": "...", "until": ["..."]})";
Request read_request(RequestLine line, bool generates) {
  Request request;
  request.id = line.take("id").value_or(nullptr);
  if (generates) {
    request.kind = Request::Kind::kUntil;
    const auto context = line.text("context");
    if (!context || !line.has("until")) line.refuse("no " + std::string(context ? "until" : "context"));
    request.context = *context;
    request.until = line.texts("until");
    request.max_new_tokens = line.count("max_new_tokens");
  } else if (const auto text = line.text("text")) {
    request.kind = Request::Kind::kText;
    request.text = *text;
  } else {
    const auto context = line.text("context"), continuation = line.text("continuation");
    if (!context || !continuation) line.refuse(context ? "no continuation" : "no context");
    request.context = *context;
    request.text = *continuation;
  }
  if (!generates && request.text.empty()) line.refuse("nothing that could be scored");
  line.finish();
  return request;
}

/// A row of the model's input: tokens, of which all after the first `given` are scored.
struct ScoredRow {
  size_t request = 0;
  std::vector<int64_t> ids;
  int64_t given = 0;
  int64_t length() const { return static_cast<int64_t>(ids.size()) - 1; }  ///< of the input
};

/// The rows of a request, none longer than the model's longest sequence.
void append_rows(size_t number, const EncodedRequest& request, int64_t longest,
                 std::vector<ScoredRow>& rows) {
  std::vector<int64_t> all = request.context;
  all.insert(all.end(), request.continuation.begin(), request.continuation.end());
  auto done = static_cast<int64_t>(request.context.size());
  const auto size = static_cast<int64_t>(all.size());
  while (done < size) {
    const int64_t end = std::min(size, done + longest);
    const int64_t begin = std::max<int64_t>(0, end - longest - 1);
    rows.push_back({number, {all.begin() + begin, all.begin() + end}, done - begin});
    done = end;
  }
}

/// Rows that are computed together, which are next to one another.
struct RowBatch {
  std::span<const ScoredRow> rows{};
};

std::vector<RowBatch> batches_of(std::span<const ScoredRow> rows, int64_t tokens_at_once) {
  std::vector<RowBatch> batches;
  while (!rows.empty()) {
    const int64_t count = std::clamp<int64_t>(tokens_at_once / rows.front().length(), 1, std::ssize(rows));
    batches.push_back({rows.first(static_cast<size_t>(count))});
    rows = rows.subspan(static_cast<size_t>(count));
  }
  return batches;
}

struct Scores {
  at::Tensor log_probs, is_greedy;  ///< of the rows, on the host
};

/// Computes the rows of a batch, or a token if it has none.
Scores scores_of(nn::Stage& model, const RowBatch& batch, const RequestScoring& scoring) {
  const int64_t count = std::max<int64_t>(1, std::ssize(batch.rows)), multiple = scoring.length_multiple,
                length = batch.rows.empty() ? 1 : batch.rows.front().length();
  const int64_t padded = (length + multiple - 1) / multiple * multiple;
  at::Tensor ids = at::zeros({count, padded}, at::kLong),
             targets = at::full({count, padded}, kernels::kIgnored, at::kLong);
  for (int64_t i = 0; i < std::ssize(batch.rows); ++i) {
    const ScoredRow& row = batch.rows[static_cast<size_t>(i)];
    std::copy_n(row.ids.begin(), row.length(), ids[i].data_ptr<int64_t>());
    std::copy(row.ids.begin() + row.given, row.ids.end(), targets[i].data_ptr<int64_t>() + row.given - 1);
  }
  const auto [log_probs, is_greedy] =
      nn::target_log_probs(model, ids.to(scoring.device), targets.to(scoring.device));
  return {log_probs.cpu(), is_greedy.cpu()};
}

}  // namespace

std::vector<Request> read_requests(std::istream& from, const std::string& name, bool generates) {
  std::vector<Request> requests;
  std::string line;
  for (int64_t number = 1; std::getline(from, line); ++number) {
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty()) continue;
    requests.push_back(read_request(
        RequestLine(util::concat(name, ", line ", number), line, generates ? kGenerated : kScored),
        generates));
  }
  return requests;
}

EncodedRequest encode_request(const data::Tokenizer& tokenizer, const Request& request,
                              std::optional<int64_t> begin) {
  const bool begins_by_itself = !tokenizer.begin_of_text().empty() || !begin;
  const std::vector<int64_t> beginning =
      begins_by_itself ? encode_prompt(tokenizer, "") : std::vector<int64_t>{*begin};
  if (request.kind == Request::Kind::kText || request.context.empty()) {
    return {beginning, encode_prompt(tokenizer, request.text, /*begins=*/false)};
  }
  const size_t last = request.context.find_last_not_of(" \t\n\r\f\v");
  const size_t kept = last == std::string::npos ? 0 : last + 1;
  const std::string context = request.context.substr(0, kept);
  if (context.empty()) {
    return {beginning, encode_prompt(tokenizer, request.context + request.text, /*begins=*/false)};
  }
  EncodedRequest encoded{encode_prompt(tokenizer, context), {}};
  const std::vector<int64_t> whole = encode_prompt(tokenizer, request.context + request.text);
  if (whole.size() > encoded.context.size()) {
    encoded.continuation.assign(whole.begin() + std::ssize(encoded.context), whole.end());
  }
  return encoded;
}

std::optional<std::vector<RequestScore>> score_requests(nn::Stage& model,
                                                        const nn::ModelOptions& model_options,
                                                        const std::vector<EncodedRequest>& requests,
                                                        const RequestScoring& scoring) {
  at::NoGradGuard no_grad;
  std::vector<ScoredRow> rows;
  const int64_t longest = nn::longest_sequence(model_options);
  for (size_t i = 0; i < requests.size(); ++i) {
    FSDP_CHECK(!requests[i].context.empty());
    require_in_vocabulary(requests[i].context, model_options);
    require_in_vocabulary(requests[i].continuation, model_options);
    append_rows(i, requests[i], longest, rows);
  }
  // The longest first, so that what does not fit into memory fails at once.
  std::ranges::stable_sort(rows, std::ranges::greater(), &ScoredRow::length);
  const std::vector<RowBatch> batches = batches_of(rows, scoring.tokens_at_once);
  const auto shares = static_cast<size_t>(scoring.shares), share = static_cast<size_t>(scoring.share);
  std::vector<RequestScore> scores(requests.size());
  for (size_t first = 0; first < batches.size(); first += shares) {
    if (scoring.stop_requested && scoring.stop_requested()) return std::nullopt;
    // A rank of a sharded model for which no batch is left computes a token with the others.
    const RowBatch batch = first + share < batches.size() ? batches[first + share] : RowBatch{};
    const Scores found = scores_of(model, batch, scoring);
    for (size_t i = 0; i < batch.rows.size(); ++i) {
      const ScoredRow& row = batch.rows[i];
      RequestScore& score = scores[row.request];
      const float* of_tokens = found.log_probs[static_cast<int64_t>(i)].const_data_ptr<float>();
      const bool* are_greedy = found.is_greedy[static_cast<int64_t>(i)].const_data_ptr<bool>();
      for (int64_t at = row.given - 1; at < row.length(); ++at) {
        score.log_likelihood += static_cast<double>(of_tokens[at]);
        score.is_greedy = score.is_greedy && are_greedy[at];
        ++score.tokens;
      }
    }
  }
  return scores;
}

void require_finite(const std::vector<RequestScore>& scores, const std::string& name) {
  for (size_t i = 0; i < scores.size(); ++i) {
    if (std::isfinite(scores[i].log_likelihood)) continue;
    fail(ErrorKind::kDiverged, name, ": the log-likelihood of request ", i + 1,
         " is not finite; either the weights come from a run that diverged, or the range of the compute type "
         "is too small for them");
  }
}

}  // namespace fsdp::generate
