#include "data/streams/token_stream.h"

#include <algorithm>
#include <chrono>

#include "base/util/error.h"
#include "base/util/hash.h"
#include "base/util/log.h"
#include "base/util/text.h"
#include "data/texts/byte_source.h"
#include "data/texts/document_collector.h"
#include "data/tokenizers/utf8.h"
#include "data/tokens/data_identity.h"
#include "data/tokens/token_files.h"

namespace fsdp::data {
namespace fs = std::filesystem;
namespace {

/// Time after which a process looks again for blocks of another one.
constexpr std::chrono::milliseconds kPollTime{5};
/// Time without a new block after which the lock of another process, which was stopped, is not waited for.
/// Blocks that both make are the same.
constexpr std::chrono::seconds kPatience{20};

/// Collects a block.
class BlockSink final : public TokenSink {
 public:
  /// `in_document`: whether the first token goes on with a document.
  explicit BlockSink(bool in_document) : begins_(!in_document) {}

  void append(const std::vector<int64_t>& ids) override {
    if (ids.empty()) return;
    if (begins_) content_.starts.push_back(static_cast<uint32_t>(content_.tokens.size()));
    begins_ = false;
    for (const int64_t id : ids) content_.tokens.push_back(static_cast<uint32_t>(id));
  }
  void append(const std::vector<int64_t>& ids, const std::vector<TokenPart>&) override { append(ids); }
  void end_document() override { begins_ = true; }

  bool in_document() const { return !begins_; }
  int64_t tokens() const { return static_cast<int64_t>(content_.tokens.size()); }
  BlockContent take() { return std::exchange(content_, {}); }

 private:
  BlockContent content_;
  bool begins_;  ///< whether the next token begins a document
};

/// Ids of a text that most tokenizers encode differently.
uint64_t hash_of_ids(const Tokenizer& tokenizer) {
  std::vector<int64_t> ids;
  tokenizer.encode("The naïve café sold 1,234 croissants;\n\tdef f(x): return x**2  # 東京, Привет!", ids);
  return util::xxh3_64(ids.data(), ids.size() * sizeof(int64_t));
}

/// Returns a message with the names of the keys of [data] in place of those of fsdp-data's options.
std::string with_keys(std::string message) {
  for (const auto& [option, key] : {std::pair{"`json_field`", "data.text_column"},
                                    {"`skip_bad`", "data.skip_bad"},
                                    {"`document_separator`", "data.document_separator"}}) {
    message = replace_all(message, option, key);
  }
  return message;
}

std::exception_ptr current_error() {
  try {
    throw;
  } catch (const util::Error& error) {
    return std::make_exception_ptr(util::Error(error.kind(), with_keys(error.what())));
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

/// A text that is being encoded. Between two calls of TextJobs::encode() it stays open, because going on in
/// the middle of a compressed text takes as long as decompressing what is before.
struct TokenStream::Encoder {
  Encoder(const TokenStream& stream, size_t number, const BlockEntry& from, int64_t most_bad)
      : shard(number),
        jobs({stream.options_.files[number]}, /*json_lines=*/false, stream.options_.text_column, {},
             *stream.tokenizer_),
        bad(most_bad),
        sink(from.begin.in_document),
        collector(*stream.tokenizer_, stream.start_, stream.separator_, sink, bad),
        block(from),
        end(from.begin) {
    if (from.begin.row > 0 || from.begin.byte > 0) jobs.begin_at(from.begin);
  }

  void add(const EncodedJob& job) {
    const int64_t bad_before = bad.count();
    collector.add(job);
    block.bad_rows += bad.count() - bad_before;
    end = job.job.end;
    end.in_document = sink.in_document();
    if (end.row == 0) end.byte += collector.encoded_ahead();
  }

  size_t shard;
  TextJobs jobs;
  BadRows bad;
  BlockSink sink;
  DocumentCollector collector;
  BlockEntry block;  ///< the block whose tokens the sink collects
  TextPlace end;     ///< the place after these tokens
  size_t told = 0;   ///< number of messages about bad rows that are logged
};

TokenStream::TokenStream(StreamOptions options)
    : options_(std::move(options)),
      tokenizer_(make_tokenizer(options_.tokenizer)),
      start_(start_ids("", *tokenizer_)),
      separator_(options_.separator ? std::vector{*options_.separator} : separator_ids("", *tokenizer_)),
      vocab_size_(tokenizer_->vocab_size()),
      order_(std::max<int64_t>(1, static_cast<int64_t>(options_.files.size())), options_.shuffle,
             util::hash_of(options_.seed, "order of texts")) {
  for (const auto* ids : {&separator_, &start_}) {
    for (const int64_t id : *ids) vocab_size_ = std::max(vocab_size_, id + 1);
  }
  open_files();
}

TokenStream::~TokenStream() = default;

void TokenStream::open_files() {
  try {
    check_files(options_.files, {options_.text_column});
  } catch (...) {
    std::rethrow_exception(current_error());
  }
  uint64_t encoding = util::hash_of(hash_of_ids(*tokenizer_), options_.text_column);
  for (const auto* ids : {&separator_, &start_}) {
    encoding = util::mix64(encoding ^ util::xxh3_64(ids->data(), ids->size() * sizeof(int64_t)));
  }
  encoding = util::mix64(encoding ^ static_cast<uint64_t>(vocab_size_));
  identity_ = nlohmann::json::array(
      {{{"name", concat("tokenizer ", fs::path(options_.tokenizer).filename().string())},
        {"tokens", vocab_size_},
        {"documents", 0},
        {"sampled_xxh3_64", util::hex_digits(encoding)}}});
  for (const std::string& path : options_.files) {
    const auto source = open_bytes(path);
    std::error_code error;
    const fs::path resolved = fs::weakly_canonical(path, error);
    const uint64_t key =
        util::hash_of(util::hash_of(encoding, error ? path : resolved.string()), source->version());
    shards_.push_back({.folder = options_.folder / util::hex_digits(key), .version = source->version()});
    identity_.push_back({{"name", fs::path(path).filename().string()},
                         {"bytes", source->size_bytes()},
                         {"sampled_xxh3_64", util::hex_digits(sampled_hash(*source))}});
  }
}

nlohmann::json TokenStream::identity() const { return identity_; }

size_t TokenStream::shard_at(int64_t pass, size_t number) const {
  return static_cast<size_t>(order_.sample(pass * order_.num_samples() + static_cast<int64_t>(number)));
}

ShardCache& TokenStream::cache_of(size_t shard) const {
  Shard& found = shards_[shard];
  if (!found.cache) {
    found.cache = std::make_unique<ShardCache>(found.folder);
    found.cache->refresh();
  }
  return *found.cache;
}

/// Returns where a token of a pass is, or the text behind which it is as far as the texts are known.
TokenStream::Location TokenStream::locate(int64_t pass, int64_t token) const {
  Pass& known = passes_[pass];
  if (token < known.starts.front()) known = {};
  while (true) {
    if (token < known.starts.back()) {
      const auto next = std::ranges::upper_bound(known.starts, token);
      const auto index = static_cast<size_t>(next - known.starts.begin()) - 1;
      const size_t number = known.first + index;
      return {number, shard_at(pass, number), known.starts[index], token - known.starts[index]};
    }
    const size_t number = known.first + known.starts.size() - 1;
    if (number == shards_.size()) {
      pass_tokens_ = known.starts.back();
      return {number, shards_.size(), known.starts.back(), 0};
    }
    const size_t shard = shard_at(pass, number);
    const int64_t start = known.starts.back();
    const auto tokens = cache_of(shard).tokens();
    if (!tokens || token < start + *tokens) return {number, shard, start, token - start};
    known.starts.push_back(start + *tokens);
  }
}

/// Returns the first token from a place on whose block is missing, among so many tokens.
std::optional<TokenStream::Gap> TokenStream::first_gap(Place from, int64_t most) const {
  auto [pass, token] = from;
  const int64_t last_pass = pass + 1;
  for (int64_t distance = 0; distance < most;) {
    const Location location = locate(pass, token);
    if (ended(location)) {
      if (++pass > last_pass) return std::nullopt;
      token = 0;
      continue;
    }
    ShardCache& cache = cache_of(location.shard);
    const BlockEntry* entry = cache.find(location.token);
    if (entry == nullptr || !cache.has_file(*entry)) return Gap{pass, location};
    const int64_t step = entry->tokens_end() - location.token;
    token += step;
    distance += step;
  }
  return std::nullopt;
}

std::optional<TokenStream::Gap> TokenStream::next_gap() const {
  const auto can_be_made = [this](const std::optional<Gap>& gap) {
    return gap && shards_[gap->at.shard].error == nullptr;
  };
  for (const Place& demand : demands_) {
    if (auto gap = first_gap(demand, 1); can_be_made(gap)) return gap;
  }
  if (!cursor_) return std::nullopt;
  // Others leave it to the process that has the text open, unless they would soon have to wait.
  auto gap = first_gap(*cursor_, options_.ahead_tokens);
  if (gap && !can_go_on(*gap)) gap = first_gap(*cursor_, options_.ahead_tokens / 2);
  return can_be_made(gap) ? gap : std::nullopt;
}

/// Whether the tokens can be made without reading what is before them in the text.
bool TokenStream::can_go_on(const Gap& gap) const {
  const BlockEntry* before = cache_of(gap.at.shard).last_before(gap.at.token);
  if (before == nullptr) return true;
  return open_at_ == std::pair(gap.at.shard, before->tokens_end()) && gap.at.token == before->tokens_end();
}

bool TokenStream::has_token(int64_t pass, int64_t token) {
  std::unique_lock lock(mutex_);
  while (true) {
    const Location location = locate(pass, token);
    if (ended(location)) return false;
    if (cache_of(location.shard).find(location.token) != nullptr) return true;
    wait_for(lock, location, {pass, token});
  }
}

void TokenStream::read(int64_t pass, int64_t begin, int64_t count, int64_t* out,
                       std::vector<int64_t>& starts) {
  for (int64_t done = 0; done < count;) {
    std::shared_ptr<const TokenBlock> block;
    int64_t at = 0;
    {
      std::unique_lock lock(mutex_);
      while (!block) {
        const Location location = locate(pass, begin + done);
        FSDP_CHECK(!ended(location), "token ", begin + done, " of pass ", pass);
        if (const BlockEntry* entry = cache_of(location.shard).find(location.token)) {
          block = mapped(location.shard, *entry);
          at = location.token - entry->token;
        }
        if (!block) wait_for(lock, location, {pass, begin + done});
      }
    }
    const int64_t part = std::min(count - done, block->size() - at);
    block->read(at, part, out + done);
    for (const int64_t start : block->starts_in(at, part)) starts.push_back(done + start - at);
    done += part;
  }
}

void TokenStream::look_ahead(int64_t pass, int64_t token) {
  const std::lock_guard lock(mutex_);
  const Place place{pass, token};
  if (cursor_ && place <= *cursor_) return;
  cursor_ = place;
  start_producer();
  changed_.notify_all();
}

std::shared_ptr<const TokenBlock> TokenStream::mapped(size_t shard, const BlockEntry& entry) {
  const std::pair key{shard, entry.token};
  if (const auto found = mapped_.find(key);
      found != mapped_.end() && found->second.second->size() == entry.tokens) {
    found->second.first = ++mapped_uses_;
    return found->second.second;
  }
  auto block = cache_of(shard).open(entry);
  if (!block) return nullptr;
  if (static_cast<int64_t>(mapped_.size()) >= options_.kept_blocks) {
    mapped_.erase(std::ranges::min_element(mapped_, {}, [](const auto& each) { return each.second.first; }));
  }
  mapped_[key] = {++mapped_uses_, block};
  return block;
}

/// Waits a while for tokens at a place.
void TokenStream::wait_for(std::unique_lock<std::mutex>& lock, const Location& location, const Place& place) {
  if (const auto& error = shards_[location.shard].error) std::rethrow_exception(error);
  if (cache_of(location.shard).refresh()) return;
  const auto demand = demands_.insert(place);
  start_producer();
  changed_.notify_all();
  changed_.wait_for(lock, kPollTime);
  demands_.erase(demand);
}

std::optional<int64_t> TokenStream::pass_tokens() const {
  const std::lock_guard lock(mutex_);
  return pass_tokens_;
}

int64_t TokenStream::count_pass() {
  constexpr int64_t kBehindAll = int64_t{1} << 62;
  if (const auto tokens = pass_tokens()) return *tokens;
  has_token(0, kBehindAll);
  return *pass_tokens();
}

nlohmann::json TokenStream::state(int64_t pass, int64_t token) const {
  const std::lock_guard lock(mutex_);
  Location location = locate(pass, token);
  if (ended(location)) location = locate(++pass, 0);
  const BlockEntry* entry = cache_of(location.shard).last_before(location.token);
  nlohmann::json state = {{"pass", pass}, {"text", location.number}, {"text_begin", location.start}};
  if (pass_tokens_) state["pass_tokens"] = *pass_tokens_;
  if (entry == nullptr) return state;
  const bool covers = location.token < entry->tokens_end();
  state["token"] = covers ? entry->token : entry->tokens_end();
  state["place"] = to_json(covers ? entry->begin : entry->end);
  return state;
}

void TokenStream::resume(const nlohmann::json& state) {
  const auto pass = state.at("pass").get<int64_t>();
  const Pass known{.first = state.at("text").get<size_t>(),
                   .starts = {state.at("text_begin").get<int64_t>()}};
  const std::lock_guard lock(mutex_);
  if (pass < 0 || known.first >= shards_.size() || known.starts.front() < 0) return;
  if (state.contains("pass_tokens")) pass_tokens_ = state.at("pass_tokens").get<int64_t>();
  passes_[pass] = known;
  if (!state.contains("token")) return;
  const auto token = state.at("token").get<int64_t>();
  const TextPlace place = place_of(state.at("place"));
  ShardCache& cache = cache_of(shard_at(pass, known.first));
  if (token > 0 && place.row >= 0 && cache.find(token) == nullptr) cache.add_place(token, place);
}

void TokenStream::start_producer() {
  if (!producer_.joinable()) {
    producer_ = std::jthread([this](const std::stop_token& stop) { produce_all(stop); });
  }
}

void TokenStream::produce_all(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  auto last_block = std::chrono::steady_clock::now();
  while (!stop.stop_requested()) {
    const std::optional<Gap> gap = next_gap();
    if (!gap) {
      changed_.wait_for(lock, stop, std::chrono::milliseconds(100), [] { return false; });
      last_block = std::chrono::steady_clock::now();
      continue;
    }
    Shard& shard = shards_[gap->at.shard];
    ShardCache& cache = cache_of(gap->at.shard);
    try {
      const bool is_locked = cache.try_lock();
      if (!is_locked && std::chrono::steady_clock::now() - last_block < kPatience) {
        // Another process makes the blocks.
        if (cache.refresh()) {
          last_block = std::chrono::steady_clock::now();
          changed_.notify_all();
        } else {
          changed_.wait_for(lock, stop, kPollTime, [] { return false; });
        }
        continue;
      }
      const BlockEntry* entry = cache.find(gap->at.token);
      const bool is_made = (entry != nullptr && cache.has_file(*entry)) ||
                           (cache.tokens() && gap->at.token >= *cache.tokens());
      if (!is_made) {
        lock.unlock();
        produce(*gap, stop);
        lock.lock();
      }
    } catch (...) {
      if (!lock.owns_lock()) lock.lock();
      shard.error = current_error();
    }
    cache.unlock();
    last_block = std::chrono::steady_clock::now();
    changed_.notify_all();
  }
}

/// Makes blocks of a text until enough are there. Requires: the lock of the text.
void TokenStream::produce(const Gap& gap, const std::stop_token& stop) {
  const std::string& path = options_.files[gap.at.shard];
  BlockEntry from;
  int64_t bad_rows = 0;
  std::unique_lock lock(mutex_);
  open_at_.reset();
  ShardCache& cache = cache_of(gap.at.shard);
  if (const BlockEntry* before = cache.last_before(gap.at.token)) {
    const bool covers = gap.at.token < before->tokens_end();
    from.token = covers ? before->token : before->tokens_end();
    from.begin = covers ? before->begin : before->end;
  }
  for (const Shard& shard : shards_) bad_rows += shard.cache ? shard.cache->bad_rows() : 0;
  const std::string version = shards_[gap.at.shard].version;
  lock.unlock();

  if (open_bytes(path)->version() != version) {
    refuse_text(
        path, "has changed since the run began; put it back, or start the run again with the present texts");
  }
  // While this thread works, no other one uses the encoder. After an error it is not used again.
  std::unique_ptr<Encoder> encoder = std::move(encoder_);
  if (!encoder || encoder->shard != gap.at.shard || encoder->block.token != from.token) {
    encoder = std::make_unique<Encoder>(*this, gap.at.shard, from,
                                        std::max<int64_t>(options_.skip_bad - bad_rows, 0));
  }
  const auto publish = [&](bool is_last) {
    BlockEntry& block = encoder->block;
    block.tokens = encoder->sink.tokens();
    block.end = encoder->end;
    block.is_last = is_last;
    const std::vector<std::string>& messages = encoder->bad.messages();
    for (size_t& told = encoder->told; told < messages.size(); ++told) {
      util::log_warning("left out: " + with_keys(messages[told]));
    }
    limit_cache(cache.write(block, encoder->sink.take()));  // before anyone waits for the next block
    {
      const std::lock_guard taken(mutex_);
      cache.take(block);
      changed_.notify_all();
    }
    block = {.token = block.tokens_end(), .begin = encoder->end};
  };
  const bool ends = encoder->jobs.encode(options_.threads, [&](const EncodedJob& job) {
    encoder->add(job);
    if (encoder->sink.tokens() >= options_.block_tokens) publish(/*is_last=*/false);
    return wants_more(gap, encoder->block.token, stop);
  });
  if (ends || encoder->sink.tokens() > 0) publish(ends);
  if (ends) return;
  lock.lock();
  open_at_ = {gap.at.shard, encoder->block.token};
  encoder_ = std::move(encoder);
}

/// Whether to go on behind a token of the text.
bool TokenStream::wants_more(const Gap& gap, int64_t tokens_end, const std::stop_token& stop) const {
  if (stop.stop_requested()) return false;
  const std::lock_guard lock(mutex_);
  const Place end{gap.pass, gap.at.start + tokens_end};
  if (!demands_.empty()) {
    // The first demand is served first. It may be in another text.
    const Place& demand = *demands_.begin();
    const Location location = locate(demand.first, demand.second);
    if (!ended(location) && location.shard == gap.at.shard && location.token >= tokens_end) return true;
    const BlockEntry* entry = ended(location) ? nullptr : cache_of(location.shard).find(location.token);
    if (!ended(location) && entry == nullptr && shards_[location.shard].error == nullptr) return false;
  }
  if (!cursor_) return false;
  const int64_t passes = end.first - cursor_->first;
  if (passes < 0 || (passes > 0 && !pass_tokens_)) return false;
  return passes * pass_tokens_.value_or(0) + end.second - cursor_->second < 2 * options_.ahead_tokens;
}

void TokenStream::limit_cache(int64_t written) {
  {
    const std::lock_guard lock(mutex_);
    written_bytes_ += written;
    if (written_bytes_ < options_.most_cache_bytes / 16) return;
    written_bytes_ = 0;
  }
  limit_blocks(options_.folder, options_.most_cache_bytes);
}

}  // namespace fsdp::data
