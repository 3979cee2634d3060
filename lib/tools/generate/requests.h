#pragma once

// Requests of an evaluation, as lm-evaluation-harness makes them: how likely a continuation of a context is,
// or a whole text, and which text a model writes until it writes a certain string. A file has a JSON object a
// line:
//   {"context": "The capital of France is", "continuation": " Paris"}
//   {"text": "To be, or not to be"}
//   {"context": "Q: 1 + 1? A:", "until": ["\n"], "max_new_tokens": 16}
// Each may have an "id" of any type, which goes into its result.

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizers/tokenizer.h"
#include "model/families/options.h"
#include "model/nn/stage.h"

namespace fsdp::generate {

struct Request {
  enum class Kind { kContinuation, kText, kUntil };
  Kind kind = Kind::kContinuation;
  std::string context = {};
  std::string text = {};                ///< the continuation, or the whole text
  std::vector<std::string> until = {};  ///< none of which is empty
  std::optional<int64_t> max_new_tokens = std::nullopt;
  nlohmann::json id = nullptr;  ///< null: none
};

/// Reads all requests. `generates`: whether they are to have "until"; otherwise none may. `name` is for
/// messages. Throws Error(kUsage) that names the line for one that is not such an object.
std::vector<Request> read_requests(std::istream& from, const std::string& name, bool generates);

struct EncodedRequest {
  std::vector<int64_t> context;       ///< at least one token
  std::vector<int64_t> continuation;  ///< the tokens that are scored
};
/// The tokens of a request that is scored. As in lm-evaluation-harness, spaces at the end of a context belong
/// to the continuation, and an empty context, and a text, are preceded by the tokens that the tokenizer puts
/// before texts, else by `begin` (the model's bos_token_id), else by what encode_prompt() makes of no text.
EncodedRequest encode_request(const data::Tokenizer& tokenizer, const Request& request,
                              std::optional<int64_t> begin = std::nullopt);

struct RequestScore {
  double log_likelihood = 0;  ///< in nats
  int64_t tokens = 0;
  bool is_greedy = true;  ///< whether each token is the likeliest after those before it
};

struct RequestScoring {
  int64_t tokens_at_once = 2048;   ///< most tokens that are computed together
  int64_t length_multiple = 1;     ///< rows are padded to a multiple of it
  c10::Device device = c10::kCPU;  ///< device of the model
  /// Share of the batches that this rank of a sharded model computes, of so many.
  int share = 0, shares = 1;
  /// Called before each batch; returning true ends the scoring. Collective if the model is sharded.
  std::function<bool()> stop_requested = nullptr;
};

/// Scores the continuations, those of similar length together; nothing if a stop was requested. Of a context
/// that is too long for the model the last tokens are used. A continuation that is too long is cut into
/// pieces with as much context as possible, none of whose tokens is scored twice. With several shares, the
/// scores are those of the rank's share of the tokens: their sums over the ranks, and whether all are greedy,
/// are the results. Collective if the model is sharded. Throws Error(kUsage) for ids outside the vocabulary.
std::optional<std::vector<RequestScore>> score_requests(nn::Stage& model,
                                                        const nn::ModelOptions& model_options,
                                                        const std::vector<EncodedRequest>& requests,
                                                        const RequestScoring& scoring = {});

/// Throws Error(kDiverged) for log-likelihoods that are not finite. `name` is for the message.
void require_finite(const std::vector<RequestScore>& scores, const std::string& name);

}  // namespace fsdp::generate
