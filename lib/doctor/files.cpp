#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "checkpoint/stored_model.h"
#include "checkpoint/weights.h"
#include "config/model_description.h"
#include "data/text_input.h"
#include "data/token_files.h"
#include "doctor/checks.h"
#include "util/error.h"
#include "util/text.h"

namespace fsdp::doctor {
namespace {

using util::concat;

/// Names and shapes alone; the values are not read.
Finding check_first_weights(const nn::ModelOptions& model) {
  constexpr const char* kSubject = "first weights";
  try {
    config::require_same_model(model, model.init_from);
    const checkpoint::Weights weights = checkpoint::open_weights(model.init_from);
    const size_t used = checkpoint::match_initial_weights(weights, model).size();
    return {Verdict::kOk, kSubject, concat(model.init_from, ": the ", used, " weights of the model"), ""};
  } catch (const util::Error& error) {
    return {Verdict::kFail, kSubject, error.what(), "correct model.init_from or [model]"};
  }
}

constexpr const char* kRemedy =
    "make them (fsdp-data tokenize) or correct the config; relative paths begin at the folder that the "
    "program is started in";

/// How far the data is read.
constexpr int64_t kReadTokens = 250'000'000;

/// Whether the model has an embedding for each id of the data.
Finding check_tokens(const char* subject, const std::vector<std::string>& paths, int64_t vocab_size) {
  try {
    const data::TokenFiles files(paths);
    const int64_t largest = data::largest_id(files, kReadTokens);
    const bool fits = largest < vocab_size;
    return {fits ? Verdict::kOk : Verdict::kFail, subject,
            concat(util::with_commas(files.size()), " tokens, the largest id ",
                   files.size() > kReadTokens
                       ? concat("of the first ", util::with_commas(kReadTokens), " of them ")
                       : "",
                   largest, ", model.vocab_size ", vocab_size),
            fits ? "" : data::remedy_for_id(largest)};
  } catch (const util::Error& error) {
    return {Verdict::kFail, subject, error.what(), "make the files with fsdp-data tokenize"};
  }
}

}  // namespace

Findings check_files(const config::Config& config) {
  std::vector<std::string> train, validation;
  try {
    train = data::expand_patterns(config.data.train);
    validation = data::expand_patterns(config.data.validation);
  } catch (const util::Error& error) {
    return {{Verdict::kFail, "files", error.what(), kRemedy}};
  }
  std::vector<std::string> files = train, missing;
  files.insert(files.end(), validation.begin(), validation.end());
  for (const std::string& weights : {config.model.init_from, config.checkpoint.init_from}) {
    if (!weights.empty()) files.push_back(weights);
  }
  for (const std::string& file : files) {
    if (::access(file.c_str(), R_OK) != 0)
      missing.push_back(concat(file, " (", util::errno_text(errno), ")"));
  }
  if (missing.empty()) {
    Findings findings = {{Verdict::kOk, "files", concat(files.size(), " named by the config are there"), ""}};
    findings.push_back(check_tokens("training data", train, config.model.vocab_size));
    if (!validation.empty()) {
      findings.push_back(check_tokens("validation data", validation, config.model.vocab_size));
    }
    if (!config.model.init_from.empty()) findings.push_back(check_first_weights(config.model));
    return findings;
  }
  return {{Verdict::kFail, "files", util::join(missing, ", "), kRemedy}};
}

}  // namespace fsdp::doctor
