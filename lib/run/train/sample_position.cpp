#include "run/train/sample_position.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string_view>
#include <vector>

#include "base/util/error.h"
#include "base/util/text.h"

namespace fsdp::train {
namespace {

using nlohmann::json;

/// A setting among the members of the record: its key, and whether a change is converted if that is exact.
struct Setting {
  const char* name;
  const char* key;
  bool converts = false;
};
constexpr auto kSettings = std::to_array<Setting>({{"dataset", "data.dataset"},
                                                   {"sequence_length", "data.sequence_length", true},
                                                   {"max_tokens", "data.max_tokens", true},
                                                   {"documents", "data.documents"},
                                                   {"document_separator", "data.document_separator"},
                                                   {"train_on", "data.train_on"},
                                                   {"shuffle", "data.shuffle", true},
                                                   {"shuffle_block_size", "data.shuffle_block_size"},
                                                   {"train_weights", "data.train_weights"},
                                                   {"train", "data.train"},
                                                   {"seed", "run.seed"}});

int64_t count_of(const json& record, const char* name) {
  if (!record.is_object()) return 0;
  const auto found = record.find(name);
  return found != record.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

/// Returns the record of a checkpoint. Without one, derives it from the checkpoint's counts; an import from
/// another toolkit, which has no seed, has no information about rows.
json recorded_sampling(const json& training, int64_t samples_seen) {
  if (!training.is_object()) return json::object();
  if (const auto found = training.find("sampling"); found != training.end() && found->is_object())
    return *found;
  json record = {{"max_tokens", count_of(training, "max_tokens")}};
  if (!training.contains("seed")) return record;
  record["seed"] = training["seed"];
  const int64_t tokens = count_of(training, "tokens_seen");
  if (!training.contains("max_tokens") && samples_seen > 0 && tokens > 0 && tokens % samples_seen == 0) {
    record["sequence_length"] = tokens / samples_seen;
  }
  return record;
}

/// Returns the settings that differ.
std::vector<Setting> changes_between(const json& before, const json& now) {
  std::vector<Setting> changes;
  for (const Setting& setting : kSettings) {
    const auto found = before.find(setting.name);
    if (found != before.end() && *found != now.at(setting.name)) changes.push_back(setting);
  }
  return changes;
}

std::string value_text(const json& value) { return value.is_null() ? "none" : value.dump(); }

std::string described(const std::vector<Setting>& changes, const json& before, const json& now) {
  std::vector<std::string> texts;
  for (const Setting& change : changes) {
    texts.push_back(concat(change.key, " was ", value_text(before.at(change.name)), " and is ",
                           value_text(now.at(change.name))));
  }
  return util::join(texts, ", ");
}

bool is_mixture(const json& record) {
  const auto weights = record.find("train_weights");
  return weights != record.end() && !weights->empty();
}

/// Whether rows follow one another in the files, so that a position is a number of tokens.
bool reads_in_order(const json& record) {
  return record.value("dataset", "") == data::kTokenFiles && !record.value("shuffle", true) &&
         record.value("documents", "split") != "split" && count_of(record, "max_tokens") == 0 &&
         count_of(record, "sequence_length") > 0;
}

/// Whether the two records place the same tokens in the same rows and the rows in the same order.
bool same_rows(const std::vector<Setting>& changes, const json& before, const json& now) {
  const bool splits = before.value("documents", "") == "split" || now.value("documents", "") == "split";
  return std::ranges::all_of(changes, [&](const Setting& change) {
    const std::string_view name = change.name;
    if (name == "train_on") return true;
    if (name == "documents" || name == "document_separator") return !splits;
    return name == "seed" && !before.value("shuffle", true) && !now.value("shuffle", true);
  });
}

/// Returns the position after the same samples; nullopt if there is none.
std::optional<int64_t> exact_position(int64_t seen, const std::vector<Setting>& changes, const json& before,
                                      const json& now) {
  if (seen == 0 || same_rows(changes, before, now)) return seen;
  const int64_t old_epoch = count_of(before, "samples_per_epoch"), epoch = count_of(now, "samples_per_epoch");
  if (is_mixture(before) || is_mixture(now) || old_epoch <= 0) return std::nullopt;
  const int64_t epochs = seen / old_epoch, rest = seen % old_epoch;
  if (rest == 0) return epochs * epoch;
  if (!reads_in_order(before) || !reads_in_order(now)) return std::nullopt;
  const int64_t tokens = rest * count_of(before, "sequence_length"),
                length = count_of(now, "sequence_length");
  if (tokens % length != 0 || tokens / length > epoch) return std::nullopt;
  return epochs * epoch + tokens / length;
}

/// Returns the position after the same part of an epoch, or, for a mixture, after the same number of tokens.
int64_t nearest_position(int64_t seen, const json& before, const json& now) {
  double ratio = 1;
  const int64_t old_epoch = count_of(before, "samples_per_epoch");
  const int64_t old_length = count_of(before, "sequence_length");
  if (old_epoch > 0 && !is_mixture(before) && !is_mixture(now)) {
    ratio = static_cast<double>(count_of(now, "samples_per_epoch")) / static_cast<double>(old_epoch);
  } else if (old_length > 0 && count_of(before, "max_tokens") == 0 && count_of(now, "max_tokens") == 0) {
    ratio = static_cast<double>(old_length) / static_cast<double>(count_of(now, "sequence_length"));
  }
  return std::llround(static_cast<double>(seen) * ratio);
}

}  // namespace

json sampling_record(const config::Config& config, const data::TrainLoader& loader) {
  const data::DataOptions& options = config.data;
  json record = {{"dataset", options.dataset},
                 {"sequence_length", options.sequence_length},
                 {"max_tokens", options.max_tokens},
                 {"documents", options.documents.name()},
                 {"document_separator", nullptr},
                 {"train_on", options.train_on.name()},
                 {"shuffle", options.shuffle},
                 {"train_weights", options.train_weights},
                 {"train", nullptr},
                 {"seed", config.run.seed},
                 {"shuffle_block_size", nullptr},
                 {"samples_per_epoch", nullptr},
                 {"tokens", loader.num_tokens()}};
  if (const auto samples = loader.known_samples()) record["samples_per_epoch"] = *samples;
  // Each set of a mixture is shuffled by a seed that is made from its entry.
  if (!options.train_weights.empty() && options.shuffle) record["train"] = options.train;
  for (const data::TrainLoader::Set& set : loader.sets()) {
    if (const auto separator = set.samples->document_separator()) record["document_separator"] = *separator;
    if (options.shuffle && set.samples->num_samples() == data::kEndless) {
      record["shuffle_block_size"] = options.shuffle_block_size;
    }
  }
  return record;
}

ResumedPosition resumed_position(const json& record, const json& present, bool may_differ,
                                 const std::string& where) {
  const int64_t samples_seen = count_of(record, "samples_seen");
  const json before = recorded_sampling(record, samples_seen);
  const std::vector<Setting> changes = changes_between(before, present);
  if (changes.empty()) return {.samples_seen = samples_seen};
  const std::string changed = described(changes, before, present);
  const auto exact = exact_position(samples_seen, changes, before, present);
  const bool converts = exact && std::ranges::all_of(changes, &Setting::converts);
  if (!converts && !may_differ) {
    fail(
        ErrorKind::kUsage, "the samples must be defined as they were when ", where,
        " was saved, because the position of a run counts them, but ", changed,
        "; set it back, set data.allow_changed=true to continue with the present samples, or start a new run from "
        "the weights with checkpoint.init_from");
  }
  ResumedPosition position{.samples_seen = exact.value_or(nearest_position(samples_seen, before, present)),
                           .is_exact = exact.has_value()};
  position.note =
      concat(changed, "; the position of the run, ", samples_seen, " samples, ",
             position.samples_seen == samples_seen ? "stays" : concat("is now ", position.samples_seen),
             exact ? ", and no sample is repeated or skipped"
                   : ", as near as it can be: in this epoch some samples are read again and some never");
  return position;
}

}  // namespace fsdp::train
