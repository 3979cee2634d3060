// Memory and time of each reader for mutated inputs: no more than so many times the input's bytes, beside a
// constant. FSDP_FUZZ_INPUTS=10000 fuzz_test --gtest_filter='FuzzLimits.*' makes the table in
// docs/reliability.md.

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "base/util/file.h"
#include "base/util/json.h"
#include "base/util/text.h"
#include "fuzz/targets.h"
#include "support/resident_memory.h"

namespace fsdp::fuzz {
namespace {

constexpr double kMostTimesTheInput = 64, kMostSecondsPerMegabyte = 5;
/// Of libraries, which allocate some pages and buffers for any file.
constexpr double kConstantBytes = 24 << 20, kConstantSeconds = 1;
constexpr size_t kLongestInput = size_t{1} << 18;

int inputs_per_format() {
  const char* chosen = std::getenv("FSDP_FUZZ_INPUTS");
  return chosen == nullptr ? 100 : std::atoi(chosen);
}

/// Makes inputs of committed ones: bits flip, numbers become extreme, pieces are dropped, copied, repeated
/// many times and taken from other inputs.
class Mutator {
 public:
  explicit Mutator(std::vector<std::string> seeds) : seeds_(std::move(seeds)) {}

  std::string next() {
    std::string bytes = seeds_[below(seeds_.size())];
    for (size_t times = 1 + below(4); times > 0; --times) mutate(bytes);
    if (bytes.size() > kLongestInput) bytes.resize(kLongestInput);
    return bytes;
  }

 private:
  size_t below(size_t end) { return std::uniform_int_distribution<size_t>(0, end - 1)(random_); }
  std::string piece_of(const std::string& bytes) {
    const size_t begin = below(bytes.size());
    return bytes.substr(begin, 1 + below(std::min<size_t>(bytes.size() - begin, 64)));
  }

  void mutate(std::string& bytes) {
    if (bytes.empty()) bytes = "x";
    const size_t at = below(bytes.size());
    switch (below(7)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ 1 << below(8));
        break;
      case 1:
        bytes[at] = static_cast<char>(below(256));
        break;
      case 2: {  // a number of 1, 2, 4 or 8 bytes
        static constexpr char kBytes[] = {'\x00', '\xff', '\x7f', '\x80'};
        const size_t width = std::min(size_t{1} << below(4), bytes.size() - at);
        bytes.replace(at, width, width, kBytes[below(4)]);
        break;
      }
      case 3:
        bytes.erase(at, 1 + below(32));
        break;
      case 4:
        bytes.insert(at, piece_of(bytes));
        break;
      case 5:
        bytes.insert(at, piece_of(seeds_[below(seeds_.size())]));
        break;
      default: {
        const std::string piece = piece_of(bytes);
        const size_t room = kLongestInput - std::min(bytes.size(), kLongestInput);
        std::string many;
        for (size_t left = std::min(below(1 << 14), room / piece.size()); left > 0; --left) many += piece;
        bytes.insert(at, many);
      }
    }
  }

  std::vector<std::string> seeds_;
  std::mt19937_64 random_{7};  // NOLINT(cert-msc51-cpp): the same inputs in every run
};

std::vector<std::string> seeds_of(const std::string& name) {
  std::vector<std::filesystem::path> paths;
  for (const auto& file : std::filesystem::directory_iterator(FSDP_FUZZ_CORPUS "/" + name))
    paths.push_back(file.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> seeds;
  for (const auto& path : paths) {
    if (std::string seed = util::read_file(path); !seed.empty()) seeds.push_back(std::move(seed));
  }
  return seeds;
}

void expect_limits(const std::string& name, int (*target)(const uint8_t*, size_t)) {
  Mutator mutator(seeds_of(name));
  double most_bytes = 0, most_seconds = 0;
  const int inputs = inputs_per_format();
  for (int i = 0; i < inputs; ++i) {
    const std::string input = mutator.next();
    const auto size = static_cast<double>(input.size());
    ::malloc_trim(0);
    const auto begin = std::chrono::steady_clock::now();
    const auto bytes = static_cast<double>(testing::rise_of_resident_memory(
        [&] { EXPECT_EQ(target(reinterpret_cast<const uint8_t*>(input.data()), input.size()), 0); }));
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    most_bytes = std::max(most_bytes, bytes);
    most_seconds = std::max(most_seconds, seconds);
    if (bytes <= kConstantBytes + kMostTimesTheInput * size &&
        seconds <= kConstantSeconds + kMostSecondsPerMegabyte * size / 1e6) {
      continue;
    }
    const std::filesystem::path kept = std::filesystem::temp_directory_path() / ("fsdp-fuzz-" + name);
    util::write_file_atomically(kept, input);
    FAIL() << "input " << i << " of " << input.size() << " bytes took " << bytes / 1e6 << " MB and "
           << seconds << " s; it is in " << kept;
  }
  std::cout << name << ": " << inputs << " inputs, the largest took "
            << util::human_bytes(static_cast<int64_t>(most_bytes)) << ", the slowest "
            << util::fixed(most_seconds, 3) << " s\n";
}

/// Without the repetitions of the target json().
int plain_json(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    util::parse_json(text, {.deepest_level = 32});
    const util::CanonicalJson canonical(text, {.deepest_level = 32});
  } catch (const util::JsonError&) {
  }
  return 0;
}

TEST(FuzzLimits, Json) { expect_limits("json", plain_json); }
TEST(FuzzLimits, Safetensors) { expect_limits("safetensors", safetensors); }
TEST(FuzzLimits, GgufFile) { expect_limits("gguf_file", gguf_file); }
TEST(FuzzLimits, Manifest) { expect_limits("manifest", manifest); }
TEST(FuzzLimits, ShardFile) { expect_limits("shard_file", shard_file); }
TEST(FuzzLimits, TokenFile) { expect_limits("token_file", token_file); }
TEST(FuzzLimits, TokenizerJson) { expect_limits("tokenizer_json", tokenizer_json); }
TEST(FuzzLimits, TextInput) { expect_limits("text_input", text_input); }
TEST(FuzzLimits, Parquet) { expect_limits("parquet", parquet); }
TEST(FuzzLimits, ArchiveRows) { expect_limits("archive_rows", archive_rows); }
TEST(FuzzLimits, DcpMetadata) { expect_limits("dcp_metadata", dcp_metadata); }
TEST(FuzzLimits, TorchObject) { expect_limits("torch_object", torch_object); }
TEST(FuzzLimits, SentencePieceModel) { expect_limits("sentencepiece_model", sentencepiece_model); }
TEST(FuzzLimits, RankVocabulary) { expect_limits("rank_vocabulary", rank_vocabulary); }
TEST(FuzzLimits, ConfigToml) { expect_limits("config_toml", config_toml); }
TEST(FuzzLimits, ForeignConfig) { expect_limits("foreign_config", foreign_config); }
TEST(FuzzLimits, ModelConfig) { expect_limits("model_config", model_config); }
TEST(FuzzLimits, RunFolder) { expect_limits("run_folder", run_folder); }

}  // namespace
}  // namespace fsdp::fuzz
