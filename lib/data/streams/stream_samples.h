#pragma once

// Samples of texts that are tokenized while they are read (token_stream.h).

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/options/datasets.h"
#include "data/streams/token_stream.h"

namespace fsdp::data {

/// Sample i of a pass is its tokens [i*T, i*T + T], as in token files. A training set has no end: its samples
/// are those of pass after pass. With data.shuffle, the texts have another order in each pass, and samples
/// are shuffled within blocks of data.shuffle_block_size by the seed, the pass and the block.
class StreamSamples final : public Samples {
 public:
  /// Throws Error(kUsage) for options that need token files, and as TokenStream() does.
  StreamSamples(std::vector<std::string> files, const SamplesRequest& request);

  /// kEndless for a training set; otherwise the samples of a pass, which is made up to its end to count them.
  int64_t num_samples() const override { return num_samples_; }
  int64_t num_tokens() const override { return stream_.pass_tokens().value_or(0); }
  std::string name() const override { return stream_.files().front(); }
  Row read(int64_t sample, int64_t* inputs, int64_t* targets) const override;
  nlohmann::json identity() const override { return stream_.identity(); }

  std::optional<int64_t> known_pass() const override;
  int64_t count_pass() const override;
  nlohmann::json state(int64_t sample) const override;
  void resume(const nlohmann::json& state) override { stream_.resume(state); }

 private:
  /// A sample of a pass, and the block of samples that it is shuffled in.
  struct PassSample {
    int64_t pass = 0, sample = 0;
    int64_t block_begin = 0, block_size = 1;
  };
  PassSample place_of(int64_t index) const;
  int64_t samples_of(int64_t tokens) const;
  PassSample within_pass(int64_t pass, int64_t index, std::optional<int64_t> samples) const;

  int64_t length_, vocab_size_;
  bool shuffle_, masks_;
  int64_t block_size_;
  uint64_t seed_;
  mutable TokenStream stream_;
  int64_t num_samples_;
};

/// Lets open_samples() open texts: entries that are folders, or whose files are texts by their names
/// (text_names.h). Programs that train call it once at their start.
void read_texts_as_data_sets();

}  // namespace fsdp::data
