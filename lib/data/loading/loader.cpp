#include "data/loading/loader.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "base/util/error.h"
#include "base/util/hash.h"
#include "base/util/text.h"
#include "data/loading/packed_documents.h"

namespace fsdp::data {
namespace {

/// Refuses options for which the arithmetic below is undefined, for callers that have no config.
const DataOptions& checked(const DataOptions& options, int64_t vocab_size, const Placement& placement) {
  if (options.sequence_length < 1 || options.micro_batch_size < 1) {
    fail(ErrorKind::kUsage, "data.sequence_length = ", options.sequence_length,
         " and data.micro_batch_size = ", options.micro_batch_size,
         " must both be at least 1; correct them in the config");
  }
  if (placement.gradient_accumulation_steps < 1) {
    fail(ErrorKind::kUsage, "training.gradient_accumulation_steps = ", placement.gradient_accumulation_steps,
         " must be at least 1; correct it in the config");
  }
  FSDP_CHECK(vocab_size > 0 && placement.world_size > 0);
  FSDP_CHECK(placement.rank >= 0 && placement.rank < placement.world_size);
  return options;
}

std::unique_ptr<Samples> open_entries(const std::vector<std::string>& entries, const char* key,
                                      const DataOptions& options, int64_t vocab_size,
                                      std::optional<uint64_t> training_seed = std::nullopt) {
  if (entries.empty()) {
    fail(ErrorKind::kUsage, key, " lists no token file; add at least one (fsdp-data tokenize writes them)");
  }
  return open_samples({.entries = entries,
                       .options = options,
                       .vocab_size = vocab_size,
                       .repeats = training_seed.has_value(),
                       .seed = training_seed.value_or(0)});
}

TrainLoader::Set open_set(const std::string& name, const std::vector<std::string>& entries,
                          const DataOptions& options, int64_t vocab_size, uint64_t seed) {
  std::unique_ptr<Samples> opened = open_entries(entries, "data.train", options, vocab_size, seed);
  const int64_t samples = opened->num_samples();
  // checked_samples_per_step() reports too few samples of the only set, with what a step needs.
  if (samples == 0 && !name.empty()) {
    fail(ErrorKind::kData, "the data set ", name, " of data.train has ", opened->num_tokens(),
         " tokens, but a sample of data.sequence_length = ", options.sequence_length, " needs ",
         options.sequence_length + 1, "; use more text or leave it out");
  }
  std::unique_ptr<TokenBatches> batches;
  if (options.max_tokens > 0) {
    batches = std::make_unique<TokenBatches>(*opened, options.max_tokens, options.shuffle, seed);
  }
  const int64_t places = batches ? batches->num_batches() : samples;
  return {.name = name,
          .samples = std::move(opened),
          .batches = std::move(batches),
          .order = SampleOrder(std::max<int64_t>(places, 1), options.shuffle && places != kEndless, seed)};
}

std::vector<TrainLoader::Set> open_sets(const DataOptions& options, int64_t vocab_size, uint64_t seed) {
  std::vector<TrainLoader::Set> sets;
  if (options.train_weights.empty()) {
    sets.push_back(open_set("", options.train, options, vocab_size, seed));
    return sets;
  }
  if (options.train_weights.size() != options.train.size()) {
    fail(ErrorKind::kUsage, "data.train_weights must have one number for each of the ", options.train.size(),
         " entries of data.train, but has ", options.train_weights.size(), "; add or remove some");
  }
  for (const std::string& entry : options.train) {
    // Each set has its own seed, so that sets of the same length are shuffled differently.
    sets.push_back(open_set(entry, {entry}, options, vocab_size, util::hash_of(seed, entry)));
  }
  return sets;
}

/// Returns A * W * B. Refuses a single set that has fewer samples.
int64_t checked_samples_per_step(const std::vector<TrainLoader::Set>& sets, const DataOptions& options,
                                 const Placement& placement) {
  const Samples& first = *sets.front().samples;
  int64_t per_step = 0;
  bool overflow = __builtin_mul_overflow(placement.gradient_accumulation_steps,
                                         static_cast<int64_t>(placement.world_size), &per_step) ||
                  __builtin_mul_overflow(per_step, samples_at_once(options), &per_step);
  const TokenBatches* batches = sets.front().batches.get();
  const int64_t samples = batches != nullptr ? batches->num_batches() : first.num_samples();
  if (batches != nullptr && sets.size() == 1 && samples < per_step) {
    fail(
        ErrorKind::kData, "the training files (data.train, from ", first.name(), " on) hold ", samples,
        " batches of at most ", options.max_tokens, " tokens where one step consumes ", per_step, " (",
        placement.gradient_accumulation_steps, " accumulation steps * ", placement.world_size,
        " ranks); give more text, or lower data.max_tokens, training.gradient_accumulation_steps or the number "
        "of ranks");
  }
  if (overflow || (sets.size() == 1 && samples < per_step)) {
    fail(ErrorKind::kData, "the training files (data.train, from ", first.name(), " on) have ", samples,
         " samples (",
         options.documents == DocumentTreatment::kSplit ? "of separate documents: "
                                                        : "(tokens - 1) / sequence_length: ",
         first.num_tokens(), " tokens, sequence_length ", options.sequence_length,
         "), but one step consumes ", overflow ? "more than 2^63" : std::to_string(per_step), " (",
         placement.gradient_accumulation_steps, " accumulation steps * ", placement.world_size, " ranks * ",
         options.micro_batch_size,
         " sequences per micro-batch); use more text, or lower data.sequence_length, ",
         "data.micro_batch_size, training.gradient_accumulation_steps or the number of ranks");
  }
  return per_step;
}

/// Fills rows of a batch one after another.
class BatchBuilder {
 public:
  explicit BatchBuilder(const DataOptions& options)
      : BatchBuilder(options, options.micro_batch_size, options.sequence_length) {}

  /// Makes rows of the first `length` tokens of samples, which have no more.
  BatchBuilder(const DataOptions& options, int64_t rows, int64_t length)
      : length_(length),
        packs_(options.preference.is_on()),
        exchanges_(options.preference.rows == PreferenceRows::kSingle),
        top_k_(options.teacher.top_k) {
    batch_.inputs = at::empty({rows, length_}, at::kLong);
    batch_.targets = at::empty({rows, length_}, at::kLong);
    if (length < options.sequence_length) whole_row_.resize(static_cast<size_t>(2 * options.sequence_length));
    input_ = batch_.inputs.mutable_data_ptr<int64_t>();
    target_ = batch_.targets.mutable_data_ptr<int64_t>();
    if (options.documents == DocumentTreatment::kMask)
      starts_ = std::make_shared<std::vector<std::vector<int64_t>>>();
  }

  void add(const Samples& samples, int64_t sample) {
    Samples::Row row;
    if (whole_row_.empty()) {
      row = samples.read(sample, input_, target_);
    } else {
      int64_t* targets = whole_row_.data() + whole_row_.size() / 2;
      row = samples.read(sample, whole_row_.data(), targets);
      std::copy_n(whole_row_.data(), length_, input_);
      std::copy_n(targets, length_, target_);
    }
    if (starts_) starts_->push_back(std::move(row.document_starts));
    documents_.push_back(std::move(row.documents));
    add_teacher(row);
    batch_.counted += row.counted;
    batch_.row_tokens.push_back(std::min(row.tokens, length_));
    ++batch_.valid_rows;
    advance();
  }

  /// Adds a row that does not count. Any input is valid, and id 0 is in every vocabulary.
  void add_ignored() {
    std::fill_n(input_, length_, int64_t{0});
    std::fill_n(target_, length_, kIgnoredTarget);
    batch_.row_tokens.push_back(0);
    if (starts_) starts_->push_back({0});
    documents_.emplace_back();
    add_teacher({});
    advance();
  }

  Batch take() {
    batch_.document_starts = std::move(starts_);
    if (top_k_ > 0) {
      const std::vector<int64_t> sizes{batch_.inputs.size(0), length_, top_k_};
      batch_.teacher_ids = at::tensor(teacher_ids_, at::kLong).view(sizes);
      batch_.teacher_log_probs = at::tensor(teacher_log_probs_, at::kFloat).view(sizes);
    }
    return packs_ ? packed_documents(batch_, documents_, exchanges_) : std::move(batch_);
  }

 private:
  /// Adds the first length_ rows of a teacher's records; zeros for a row that does not count.
  void add_teacher(const Samples::Row& row) {
    const auto count = static_cast<size_t>(length_ * top_k_);
    const auto add = [count](const auto& from, auto& to) {
      const size_t before = to.size();
      to.insert(to.end(), from.begin(), from.begin() + static_cast<ptrdiff_t>(std::min(count, from.size())));
      to.resize(before + count);
    };
    add(row.teacher_ids, teacher_ids_);
    add(row.teacher_log_probs, teacher_log_probs_);
  }

  void advance() {
    input_ += length_;
    target_ += length_;
  }

  int64_t length_;
  bool packs_, exchanges_;
  int64_t top_k_;
  std::vector<int64_t> teacher_ids_;  ///< [rows * length * top_k]
  std::vector<float> teacher_log_probs_;
  std::shared_ptr<std::vector<std::vector<int64_t>>> starts_;
  std::vector<std::vector<ScoredDocument>> documents_;  ///< of each row
  Batch batch_;
  /// Inputs and targets of a sample; empty if the sample fits the batch's row.
  std::vector<int64_t> whole_row_;
  int64_t* input_;
  int64_t* target_;
};

}  // namespace

std::vector<at::Tensor*> Batch::device_tensors() {
  std::vector<at::Tensor*> tensors{&inputs, &targets};
  if (is_token.defined()) tensors.push_back(&is_token);
  if (scored) tensors.push_back(&scored->of_targets);
  if (teacher_ids.defined()) tensors.insert(tensors.end(), {&teacher_ids, &teacher_log_probs});
  if (!exchanged) return tensors;
  for (at::Tensor* tensor : exchanged->device_tensors()) tensors.push_back(tensor);
  return tensors;
}

TrainLoader::TrainLoader(const DataOptions& options, int64_t vocab_size, uint64_t seed,
                         const Placement& placement)
    : options_(checked(options, vocab_size, placement)),
      placement_(placement),
      sets_(open_sets(options, vocab_size, seed)),
      samples_per_step_(checked_samples_per_step(sets_, options, placement)) {
  if (!options.train_weights.empty()) mixture_.emplace(options.train_weights, options.shuffle, seed);
}

int64_t TrainLoader::num_samples() const {
  int64_t sum = 0;
  for (const Set& set : sets_) sum += set.batches ? set.batches->num_batches() : set.samples->count_pass();
  return sum;
}

std::optional<int64_t> TrainLoader::known_samples(size_t set) const {
  const Set& found = sets_[set];
  return found.batches ? found.batches->num_batches() : found.samples->known_pass();
}

std::optional<int64_t> TrainLoader::known_samples() const {
  int64_t sum = 0;
  for (size_t set = 0; set < sets_.size(); ++set) {
    const auto samples = known_samples(set);
    if (!samples) return std::nullopt;
    sum += *samples;
  }
  return sum;
}

nlohmann::json TrainLoader::state(int64_t position) const {
  nlohmann::json state = nlohmann::json::array();
  for (size_t set = 0; set < sets_.size(); ++set) {
    if (sets_[set].samples->num_samples() != kEndless) {
      state.push_back(nullptr);
      continue;
    }
    state.push_back(sets_[set].samples->state(mixture_ ? mixture_->count_before(set, position) : position));
  }
  return state;
}

void TrainLoader::resume(const nlohmann::json& state) {
  if (!state.is_array() || state.size() != sets_.size()) return;
  for (size_t set = 0; set < sets_.size(); ++set) {
    try {
      if (!state[set].is_null()) sets_[set].samples->resume(state[set]);
    } catch (const nlohmann::json::exception&) {
      // Written by another version: the texts are read from their beginning.
    }
  }
}

int64_t TrainLoader::num_tokens() const {
  int64_t sum = 0;
  for (const Set& set : sets_) sum += set.samples->num_tokens();
  return sum;
}

std::optional<RowSurvey> TrainLoader::survey() const {
  std::optional<RowSurvey> sum;
  for (const Set& set : sets_) {
    const std::optional<RowSurvey> survey = set.samples->num_samples() == kEndless
                                                ? std::nullopt
                                                : set.samples->survey(set.samples->num_samples());
    if (!survey) continue;
    sum = sum.value_or(RowSurvey{});
    *sum += *survey;
  }
  return sum;
}

std::string TrainLoader::notes() const {
  std::vector<std::string> notes;
  for (const Set& set : sets_) {
    if (std::string note = set.samples->note(); !note.empty()) notes.push_back(std::move(note));
  }
  return util::join(notes, "; ");
}

double TrainLoader::samples_of(size_t set, int64_t samples) const {
  if (!mixture_) return static_cast<double>(samples);
  return static_cast<double>(samples) * static_cast<double>(mixture_->count(set)) /
         static_cast<double>(Mixture::kBlock);
}

Batch TrainLoader::batch(int64_t first_global_sample, int64_t micro_batch) const {
  FSDP_CHECK(first_global_sample >= 0, "global sample ", first_global_sample);
  FSDP_CHECK(micro_batch >= 0 && micro_batch < placement_.gradient_accumulation_steps, "micro-batch ",
             micro_batch);
  const int64_t rows = samples_at_once(options_);
  int64_t first = first_global_sample + (micro_batch * placement_.world_size + placement_.rank) * rows;
  if (options_.max_tokens > 0) return batch_by_tokens(first);
  BatchBuilder builder(options_);
  std::vector<std::pair<const Samples*, int64_t>> samples;
  for (int64_t row = 0; row < rows; ++row) {
    const Mixture::MixedSample place = place_of(first + row);
    const Set& set = sets_[place.set];
    samples.emplace_back(set.samples.get(), set.order.sample(place.index));
    if (rows > 1) set.samples->will_read(samples.back().second);
  }
  for (const auto& [set, sample] : samples) builder.add(*set, sample);
  Batch batch = builder.take();
  batch.first_row = first;
  return batch;
}

Mixture::MixedSample TrainLoader::place_of(int64_t position) const {
  if (!mixture_) return {.set = 0, .index = position};
  Mixture::MixedSample place = mixture_->at(position);
  // Other sets have been sampled in the order of at() since there have been mixtures.
  if (sets_[place.set].samples->num_samples() == kEndless) {
    place.index = mixture_->count_before(place.set, position);
  }
  return place;
}

Batch TrainLoader::batch_by_tokens(int64_t position) const {
  const Mixture::MixedSample place = place_of(position);
  const Set& set = sets_[place.set];
  const std::span<const int64_t> samples = set.batches->batch(set.order.sample(place.index));
  BatchBuilder builder(options_, static_cast<int64_t>(samples.size()), set.samples->length(samples.back()));
  for (const int64_t sample : samples) set.samples->will_read(sample);
  for (const int64_t sample : samples) builder.add(*set.samples, sample);
  Batch batch = builder.take();
  batch.first_row = position * options_.max_tokens;  // no batch has more rows
  return batch;
}

ValidationLoader::ValidationLoader(const DataOptions& options, int64_t vocab_size, int64_t max_samples,
                                   const Placement& placement)
    : options_(checked(options, vocab_size, placement)),
      placement_(placement),
      samples_(open_entries(options.validation, "data.validation", options, vocab_size)),
      num_samples_(samples_->num_samples()) {
  FSDP_CHECK(max_samples >= 0, "max_samples ", max_samples);
  if (num_samples_ == 0) {
    fail(ErrorKind::kData, "the validation files (data.validation, from ", samples_->name(), " on) have ",
         samples_->num_tokens(), " tokens, but a sample of data.sequence_length = ", options.sequence_length,
         " needs ", options.sequence_length + 1, "; use more text or lower data.sequence_length");
  }
  if (max_samples > 0) num_samples_ = std::min(num_samples_, max_samples);
  options_.micro_batch_size = std::min(options_.micro_batch_size, num_samples_);
}

int64_t ValidationLoader::num_batches() const {
  // The factors divide one by one, since W * B could overflow.
  int64_t batches = (num_samples_ + options_.micro_batch_size - 1) / options_.micro_batch_size;
  return (batches + placement_.world_size - 1) / placement_.world_size;
}

int64_t ValidationLoader::row_length(int64_t first, int64_t rows) const {
  if (options_.max_tokens == 0) return options_.sequence_length;
  int64_t longest = 1;
  for (int64_t sample = first; sample < std::min(first + rows, num_samples_); ++sample) {
    longest = std::max(longest, samples_->length(sample));
  }
  return longest;
}

Batch ValidationLoader::batch(int64_t index) const {
  FSDP_CHECK(index >= 0 && index < num_batches(), "validation batch ", index, " of ", num_batches());
  int64_t rows = options_.micro_batch_size;
  const int64_t first = first_sample(index);
  BatchBuilder builder(options_, rows, row_length(first, rows));
  for (int64_t row = 0; row < rows; ++row) {
    if (first + row < num_samples_) {
      builder.add(*samples_, first + row);
    } else {
      builder.add_ignored();
    }
  }
  return builder.take();
}

}  // namespace fsdp::data
