#include "data/streams/stream_samples.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "base/util/error.h"
#include "data/streams/stream_fixtures.h"
#include "data/tokens/sample_reader.h"

namespace fsdp::data {
namespace {

namespace fs = std::filesystem;
using fsdp::testing::TemporaryFolder;

constexpr int64_t kLength = 32;

struct ReadSample {
  std::vector<int64_t> inputs = std::vector<int64_t>(kLength), targets = std::vector<int64_t>(kLength);
  Samples::Row row = {};
};

ReadSample sample_of(const Samples& samples, int64_t index) {
  ReadSample read;
  read.row = samples.read(index, read.inputs.data(), read.targets.data());
  return read;
}

SamplesRequest request_of(const std::vector<std::string>& files, const fs::path& cache) {
  SamplesRequest request{.entries = files, .vocab_size = 70'000, .repeats = true, .seed = 3};
  request.options.sequence_length = kLength;
  request.options.tokenizer = kGpt2Kind;
  request.options.shuffle = false;
  request.options.shuffle_block_size = 100;
  request.options.cache_folder = cache.string();
  return request;
}

TEST(StreamSamples, AreThoseOfTheTokenizedTexts) {
  const TemporaryFolder folder, cache;
  const auto files = texts_of_all_kinds(folder);
  materialised(folder, files);
  for (const auto documents : {DocumentTreatment::kJoin, DocumentTreatment::kMask}) {
    SamplesRequest request = request_of(files, cache.path());
    request.options.documents = documents;
    const StreamSamples samples(files, request);
    const SampleReader expected({folder / "materialised.bin"}, request.options, request.vocab_size);
    EXPECT_EQ(samples.num_samples(), kEndless);
    for (int64_t index = 0; index < expected.num_samples() + 50; ++index) {
      const ReadSample found = sample_of(samples, index),
                       wanted = sample_of(expected, index % expected.num_samples());
      ASSERT_EQ(found.inputs, wanted.inputs) << index;
      ASSERT_EQ(found.targets, wanted.targets) << index;
      ASSERT_EQ(found.row.document_starts, wanted.row.document_starts) << index;
      ASSERT_EQ(found.row.counted, wanted.row.counted) << index;
    }
    EXPECT_EQ(samples.known_pass(), expected.num_samples());
    EXPECT_EQ(samples.num_tokens(), expected.num_tokens());
  }
}

// Whoever reads a position, with or without what is before it, finds the same sample there.
TEST(StreamSamples, AreShuffledAlikeForEveryReader) {
  const TemporaryFolder folder, cache;
  std::vector<std::string> files;
  for (unsigned i = 0; i < 7; ++i) {
    files.push_back(folder.write("t" + std::to_string(i) + ".txt", prose(40'000 + 1000 * i, i)));
  }
  SamplesRequest request = request_of(files, cache / "one");
  request.options.shuffle = true;
  const StreamSamples one(files, request);
  const int64_t pass = one.count_pass();
  std::vector<ReadSample> all;
  for (int64_t index = 0; index < 3 * pass; ++index) all.push_back(sample_of(one, index));
  std::vector<std::set<std::vector<int64_t>>> passes(3);
  for (int64_t index = 0; index < 3 * pass; ++index) {
    passes[static_cast<size_t>(index / pass)].insert(all[static_cast<size_t>(index)].inputs);
  }
  for (const auto& each : passes) EXPECT_GT(static_cast<int64_t>(each.size()), pass * 95 / 100);
  EXPECT_NE(all[0].inputs, all[static_cast<size_t>(pass)].inputs);
  // Three readers that each take every third sample, after another start than the first.
  for (int64_t rank = 0; rank < 3; ++rank) {
    request.options.cache_folder = (cache / ("of rank " + std::to_string(rank))).string();
    StreamSamples other(files, request);
    const int64_t begin = pass / 2 + rank * 97;
    other.resume(nlohmann::json::parse(one.state(begin).dump()));
    for (int64_t index = begin + rank; index < 3 * pass; index += 3) {
      const ReadSample found = sample_of(other, index);
      ASSERT_EQ(found.inputs, all[static_cast<size_t>(index)].inputs) << index;
      ASSERT_EQ(found.targets, all[static_cast<size_t>(index)].targets) << index;
    }
  }
  request.seed = 4;
  request.options.cache_folder = (cache / "of another seed").string();
  EXPECT_NE(sample_of(StreamSamples(files, request), 0).inputs, all[0].inputs);
}

TEST(StreamSamples, ShufflesWithinBlocks) {
  const TemporaryFolder folder, cache;
  const std::vector<std::string> files = {folder.write("a.txt", prose(100'000, 1))};
  SamplesRequest request = request_of(files, cache.path());
  const StreamSamples ordered(files, request);
  request.options.shuffle = true;
  const StreamSamples shuffled(files, request);
  const int64_t pass = ordered.count_pass(), block = request.options.shuffle_block_size;
  ASSERT_GT(pass, 2 * block);
  ASSERT_NE(pass % block, 0);
  for (int64_t begin = 0; begin < pass; begin += block) {
    std::multiset<std::vector<int64_t>> before, after;
    bool moves = false;
    for (int64_t index = begin; index < std::min(begin + block, pass); ++index) {
      const auto first = sample_of(ordered, index).inputs, second = sample_of(shuffled, index).inputs;
      moves = moves || first != second;
      before.insert(first);
      after.insert(second);
    }
    EXPECT_EQ(before, after) << begin;
    EXPECT_TRUE(moves) << begin;
  }
}

TEST(StreamSamples, OfAValidationSetEnd) {
  const TemporaryFolder folder, cache;
  const std::vector<std::string> files = {folder.write("a.txt", prose(30'000, 1))};
  SamplesRequest request = request_of(files, cache.path());
  request.repeats = false;
  request.options.shuffle = true;  // of training alone
  materialised(folder, files);
  const SampleReader expected({folder / "materialised.bin"}, request.options, request.vocab_size);
  const StreamSamples samples(files, request);
  ASSERT_EQ(samples.num_samples(), expected.num_samples());
  for (int64_t index = 0; index < samples.num_samples(); ++index) {
    EXPECT_EQ(sample_of(samples, index).targets, sample_of(expected, index).targets);
  }
}

TEST(StreamSamples, RefuseTextsWithoutASample) {
  const TemporaryFolder folder, cache;
  const std::vector<std::string> files = {folder.write("a.txt", "few words")};
  SamplesRequest request = request_of(files, cache.path());
  request.options.tokenizer = "bytes";
  const StreamSamples samples(files, request);
  try {
    sample_of(samples, 0);
    FAIL() << "expected an error";
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    EXPECT_EQ(
        std::string(error.what()),
        "the texts from " + files[0] +
            " on have 9 tokens, but a sample of data.sequence_length = 32 needs 33; use more text or lower "
            "data.sequence_length");
  }
}

TEST(StreamSamples, RefuseWhatNeedsTokenFiles) {
  const TemporaryFolder folder, cache;
  const std::vector<std::string> files = {folder.write("a.txt", prose(3000, 1))};
  const auto message = [&](const std::function<void(SamplesRequest&)>& change) {
    SamplesRequest request = request_of(files, cache.path());
    change(request);
    try {
      const StreamSamples samples(files, request);
    } catch (const util::Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(
      message([](auto& request) { request.options.max_tokens = 64; }),
      "data.max_tokens needs token files, because all rows are sorted by length, but " + files[0] +
          " is a text that is tokenized while it is read; write token files with fsdp-data tokenize, or leave "
          "data.max_tokens out");
  EXPECT_NE(message([](auto& request) {
              request.options.documents = DocumentTreatment::kSplit;
            }).find("data.documents = split needs token files"),
            std::string::npos);
  EXPECT_NE(message([](auto& request) {
              request.options.train_on = TrainOn::kAssistant;
            }).find("data.train_on = assistant needs token files"),
            std::string::npos);
  EXPECT_NE(message([](auto& request) {
              request.options.preference.rows = PreferenceRows::kPairs;
            }).find("training.objective needs token files"),
            std::string::npos);
  EXPECT_NE(message([](auto& request) {
              request.options.teacher.top_k = 4;
            }).find("distillation.teacher = stored needs token files"),
            std::string::npos);
  EXPECT_NE(
      message([](auto& request) { request.vocab_size = 100; }).find("model.vocab_size must be at least "),
      std::string::npos);
}

TEST(StreamSamples, AreOpenedForEntriesThatAreTexts) {
  const TemporaryFolder folder, cache;
  read_texts_as_data_sets();
  fs::create_directories(folder / "texts/below");
  folder.write("texts/b.txt", prose(3000, 1));
  folder.write("texts/below/a.jsonl", json_lines(20, 50, 1));
  const std::string tokens = write_tokens(folder, "a.bin", std::vector<uint16_t>(100, 7));
  SamplesRequest request = request_of({folder / "texts"}, cache.path());
  EXPECT_EQ(open_samples(request)->num_samples(), kEndless);
  EXPECT_EQ(open_samples(request)->name(), folder / "texts/b.txt");
  request.entries = {folder / "texts/*.txt"};
  EXPECT_EQ(open_samples(request)->num_samples(), kEndless);
  request.entries = {tokens};
  EXPECT_EQ(open_samples(request)->num_samples(), 3);
  request.entries = {folder / "texts/b.txt", tokens};
  try {
    open_samples(request);
    FAIL() << "expected an error";
  } catch (const util::Error& error) {
    EXPECT_EQ(std::string(error.what()),
              "the files of a data set must all be texts or all be token files, but " +
                  (folder / "texts/b.txt").string() + " is a text by its name and " + tokens +
                  " is not; tokenize the texts, or make separate sets of them with data.train_weights");
  }
}

TEST(StreamSamples, AreIdentifiedByTheContentsOfTheirFilesAndTheTokenizer) {
  const TemporaryFolder folder, cache;
  const std::string path = folder.write("a.txt", prose(200'000, 1));
  SamplesRequest request = request_of({path}, cache.path());
  const auto identity = [&] { return StreamSamples({path}, request).identity(); };
  const nlohmann::json first = identity();
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[1]["name"], "a.txt");
  fs::last_write_time(path, fs::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_EQ(identity(), first);  // a copy is the same text
  request.options.text_column = "content";
  EXPECT_NE(identity(), first);
  request.options.text_column = "text";
  request.options.tokenizer = "bytes";
  EXPECT_NE(identity()[0], first[0]);
  request.options.tokenizer = kGpt2Kind;
  folder.write("a.txt", "X" + prose(200'000, 1).substr(1));
  EXPECT_NE(identity()[1], first[1]);
}

}  // namespace
}  // namespace fsdp::data
