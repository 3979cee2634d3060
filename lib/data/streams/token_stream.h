#pragma once

// Texts as an endless stream of tokens, pass after pass, which threads make ahead of those who read it.
//
// A pass is the tokens of all texts, one text after another as `fsdp-data tokenize` would write them, in the
// order of the files or, shuffled, in an order by the seed and the pass. So the token at a place of a pass
// depends only on the texts, the tokenizer and the seed, wherever reading begins, and whichever process makes
// it.
//
// Tokens are made in blocks (shard_cache.h) in a folder that the processes of a host share. Blocks that are
// needed again after their files have been removed are made again.

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "data/streams/shard_cache.h"
#include "data/tokenizers/tokenizer.h"
#include "data/tokens/sample_order.h"

namespace fsdp::data {

struct StreamOptions {
  std::vector<std::string> files = {};  ///< the texts
  std::string tokenizer = "bytes";
  std::string text_column = "text";  ///< field or column of rows with the document
  std::optional<int64_t> separator =
      {};                ///< token after every document; nothing: the tokenizer's end of text
  int64_t skip_bad = 0;  ///< maximum number of unusable rows, which are left out
  bool shuffle = false;  ///< whether the order of the texts differs from pass to pass
  uint64_t seed = 0;
  std::filesystem::path folder = {};  ///< folder of the blocks
  int64_t most_cache_bytes = int64_t{16}
                             << 30;  ///< limit on the files of blocks, of all streams in the folder
  int64_t ahead_tokens = 4 << 20;    ///< tokens that are made ahead of look_ahead(), at least
  int64_t block_tokens = 1 << 20;    ///< tokens from which on a block ends
  int64_t kept_blocks = 16;          ///< blocks that are mapped at a time
  int threads = 1;                   ///< threads that encode
};

/// Thread-safe.
class TokenStream {
 public:
  /// Opens every file once. Throws Error(kData) for a file that cannot be used, and as make_tokenizer() does.
  explicit TokenStream(StreamOptions options);
  ~TokenStream();
  TokenStream(const TokenStream&) = delete;
  TokenStream& operator=(const TokenStream&) = delete;

  /// Waits until it is known whether a pass has a token at this place, and returns that. Throws Error(kData)
  /// for a text before that place which cannot be used, as the next function does.
  bool has_token(int64_t pass, int64_t token);
  /// Copies the tokens [begin, begin + count) of a pass, which it must have, and waits for them. Adds the
  /// places among them, from 0, at which documents begin to `starts`.
  void read(int64_t pass, int64_t begin, int64_t count, int64_t* out, std::vector<int64_t>& starts);
  /// Tells that the tokens from this place on are needed next, unless a later place has been told.
  void look_ahead(int64_t pass, int64_t token);

  /// Tokens of a pass; nothing before the end of a first one.
  std::optional<int64_t> pass_tokens() const;
  /// Returns the tokens of a pass, and makes as many as it takes to know.
  int64_t count_pass();
  int64_t vocab_size() const { return vocab_size_; }  ///< ids of texts are below it
  const std::vector<std::string>& files() const { return options_.files; }

  /// Returns from where resume() can go on, at a place of a pass or shortly before.
  nlohmann::json state(int64_t pass, int64_t token) const;
  /// Takes the state of another object for the same texts, tokenizer and seed. Without it, tokens from the
  /// beginning of the pass on are made first. Throws nlohmann::json::exception for anything else.
  void resume(const nlohmann::json& state);

  /// Identifies the texts and the tokenizer (Samples::identity()).
  nlohmann::json identity() const;

 private:
  using Place = std::pair<int64_t, int64_t>;  ///< a pass and a token of it
  struct Shard {
    std::filesystem::path folder;
    std::string version;  ///< ByteSource::version() when the stream was opened
    std::unique_ptr<ShardCache> cache = nullptr;
    std::exception_ptr error = nullptr;  ///< why no more blocks can be made
  };
  /// The beginnings of texts in a pass, as far as they are known.
  struct Pass {
    size_t first = 0;  ///< number in the pass's order of the first text whose beginning is known
    std::vector<int64_t> starts = {0};  ///< tokens of the pass before that text and the next ones
  };
  struct Location {
    size_t number = 0;  ///< number of the text in the pass's order
    size_t shard = 0;   ///< the text; shards_.size(): the pass has ended
    int64_t start = 0;  ///< tokens of the pass before the text
    int64_t token = 0;  ///< token of the text, perhaps behind its end, which is not known then
  };
  /// Tokens that are to be made.
  struct Gap {
    int64_t pass = 0;
    Location at;
  };

  struct Encoder;

  void open_files();
  size_t shard_at(int64_t pass, size_t number) const;
  ShardCache& cache_of(size_t shard) const;
  Location locate(int64_t pass, int64_t token) const;
  bool ended(const Location& location) const { return location.shard == shards_.size(); }
  std::optional<Gap> first_gap(Place from, int64_t most) const;
  std::optional<Gap> next_gap() const;
  bool can_go_on(const Gap& gap) const;
  std::shared_ptr<const TokenBlock> mapped(size_t shard, const BlockEntry& entry);
  void wait_for(std::unique_lock<std::mutex>& lock, const Location& location, const Place& place);
  void start_producer();

  void produce_all(const std::stop_token& stop);
  void produce(const Gap& gap, const std::stop_token& stop);
  bool wants_more(const Gap& gap, int64_t tokens_end, const std::stop_token& stop) const;
  void limit_cache(int64_t written);

  StreamOptions options_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<int64_t> start_, separator_;  ///< ids before and after every document
  int64_t vocab_size_ = 0;
  SampleOrder order_;
  nlohmann::json identity_;

  mutable std::mutex mutex_;  ///< of all that follows
  mutable std::condition_variable_any changed_;
  mutable std::vector<Shard> shards_;
  mutable std::map<int64_t, Pass> passes_;
  mutable std::optional<int64_t> pass_tokens_;
  std::optional<Place> cursor_;   ///< look_ahead()
  std::multiset<Place> demands_;  ///< what readers wait for
  std::map<std::pair<size_t, int64_t>, std::pair<int64_t, std::shared_ptr<const TokenBlock>>> mapped_;
  int64_t mapped_uses_ = 0;
  int64_t written_bytes_ = 0;  ///< bytes of blocks since the cache was last limited
  /// The text that encoder_ has open, and the token at which it goes on.
  std::optional<std::pair<size_t, int64_t>> open_at_;
  std::unique_ptr<Encoder> encoder_;  ///< the producer's
  std::jthread producer_;             ///< started by the first reader; stopped and joined first
};

}  // namespace fsdp::data
