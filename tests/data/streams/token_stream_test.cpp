#include "data/streams/token_stream.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "base/util/error.h"
#include "data/streams/stream_fixtures.h"
#include "support/resident_memory.h"

namespace fsdp::data {
namespace {

namespace fs = std::filesystem;
using fsdp::testing::TemporaryFolder;

std::string message_of(const std::function<void()>& body, ErrorKind kind = ErrorKind::kData) {
  try {
    body();
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), kind);
    return error.what();
  }
  return "no error";
}

int64_t bytes_of_blocks(const fs::path& folder) {
  int64_t bytes = 0;
  for (const auto& file : fs::recursive_directory_iterator(folder)) {
    std::error_code gone;  // while the thread that makes blocks removes others
    const auto size = static_cast<int64_t>(file.file_size(gone));
    if (!gone && file.path().extension() == kBlockExtension) bytes += size;
  }
  return bytes;
}

TEST(TokenStream, HasTheTokensThatTokenizeWrites) {
  const TemporaryFolder folder, cache;
  const auto files = texts_of_all_kinds(folder);
  const Materialised expected = materialised(folder, files);
  const auto size = static_cast<int64_t>(expected.ids.size());
  for (const int threads : {1, 3}) {
    StreamOptions options = stream_of(files, cache / std::to_string(threads));
    options.threads = threads;
    TokenStream stream(options);
    EXPECT_EQ(stream.pass_tokens(), std::nullopt);
    std::vector<int64_t> starts;
    EXPECT_EQ(ids_of(stream, 0, 0, size, &starts), expected.ids);
    EXPECT_EQ(starts, expected.starts);
    EXPECT_FALSE(stream.has_token(0, size));
    EXPECT_EQ(stream.pass_tokens(), size);
    // The next pass has the same order without shuffling.
    EXPECT_EQ(ids_of(stream, 1, 0, size), expected.ids);
  }
}

TEST(TokenStream, KeepsFewBlocksOfALargeTextInMemory) {
  const TemporaryFolder folder, cache;
  constexpr int64_t kMiB = int64_t{1} << 20, kBytes = 160 * kMiB;
  {
    const std::string line(1023, 'a');
    std::ofstream file(folder / "large.txt");
    for (int64_t i = 0; i < kBytes / 1024; ++i) file << line << '\n';
  }
  StreamOptions options = stream_of({folder / "large.txt"}, cache / "blocks");
  options.tokenizer = "bytes";
  options.ahead_tokens = 4 * kMiB;
  options.block_tokens = kMiB;
  options.kept_blocks = 4;
  options.most_cache_bytes = 64 * kMiB;
  const int64_t rise = testing::rise_of_resident_memory([&] {
    TokenStream stream(options);
    for (int64_t token = 0; token < kBytes; token += kMiB) {
      EXPECT_EQ(ids_of(stream, 0, token, 1000).front(), 'a');
    }
  });
  // The text and the tokens of 64 MiB on the disk are several times as large.
  EXPECT_LT(rise, 48 * kMiB);
}

TEST(TokenStream, BeginsAnywhereWithoutWhatIsBefore) {
  const TemporaryFolder folder, cache;
  const auto files = texts_of_all_kinds(folder);
  const Materialised expected = materialised(folder, files);
  const auto size = static_cast<int64_t>(expected.ids.size());
  TokenStream first(stream_of(files, cache / "first"));
  ids_of(first, 0, 0, size);
  first.has_token(0, size);
  std::mt19937_64 random(7);
  for (int i = 0; i < 25; ++i) {
    const int64_t pass = i % 3, begin = static_cast<int64_t>(random() % static_cast<uint64_t>(size));
    const nlohmann::json state = nlohmann::json::parse(first.state(pass, begin).dump());
    const fs::path empty = cache / std::to_string(i);
    TokenStream second(stream_of(files, empty));
    second.resume(state);
    const int64_t count = std::min<int64_t>(size - begin, 30'000);
    std::vector<int64_t> starts, of_all;
    const std::vector<int64_t> ids = ids_of(second, pass, begin, count, &starts);
    EXPECT_TRUE(std::equal(ids.begin(), ids.end(), expected.ids.begin() + begin)) << state;
    for (const int64_t start : expected.starts) {
      if (start >= begin && start < begin + count) of_all.push_back(start - begin);
    }
    EXPECT_EQ(starts, of_all) << state;
    // The block before, what is made ahead, and the jobs that were being encoded, but not the texts before.
    EXPECT_LT(bytes_of_blocks(empty) / 2, size / 3) << state;
  }
}

TEST(TokenStream, ReadsEarlierTokensThanItsStateBegins) {
  const TemporaryFolder folder, cache;
  const std::vector<std::string> files = {folder.write("a.txt", prose(600'000, 1)),
                                          folder.write("b.jsonl", json_lines(500, 800, 2))};
  const Materialised expected = materialised(folder, files);
  TokenStream first(stream_of(files, cache / "first"));
  ids_of(first, 0, 150'000, 1000);
  TokenStream second(stream_of(files, cache / "second"));
  second.resume(first.state(0, 150'000));
  EXPECT_EQ(ids_of(second, 0, 150'000, 1), ids_of(first, 0, 150'000, 1));
  const std::vector<int64_t> ids = ids_of(second, 0, 10, 1000);
  EXPECT_TRUE(std::equal(ids.begin(), ids.end(), expected.ids.begin() + 10));
}

TEST(TokenStream, SharesItsBlocksWithOtherProcesses) {
  const TemporaryFolder folder, cache;
  const auto files = texts_of_all_kinds(folder);
  const Materialised expected = materialised(folder, files);
  const auto size = static_cast<int64_t>(expected.ids.size());
  std::vector<std::jthread> readers;
  std::vector<std::vector<int64_t>> read(4);
  for (size_t i = 0; i < read.size(); ++i) {
    readers.emplace_back([&, i] {
      // Descriptors that are opened apart exclude one another as those of processes do.
      TokenStream stream(stream_of(files, cache.path()));
      for (int64_t begin = 0; begin < size; begin += 10'000) {
        const auto part = ids_of(stream, 0, begin, std::min<int64_t>(10'000, size - begin));
        read[i].insert(read[i].end(), part.begin(), part.end());
      }
    });
  }
  readers.clear();
  for (const auto& ids : read) EXPECT_EQ(ids, expected.ids);
  // Nothing has been made twice.
  EXPECT_LT(bytes_of_blocks(cache.path()), 2 * size + 200'000);
}

TEST(TokenStream, MakesBlocksAgainWhoseFilesAreGoneOrDamaged) {
  const TemporaryFolder folder, cache;
  const auto files = texts_of_all_kinds(folder);
  const Materialised expected = materialised(folder, files);
  const auto size = static_cast<int64_t>(expected.ids.size());
  {
    TokenStream stream(stream_of(files, cache.path()));
    ids_of(stream, 0, 0, size);
  }
  int number = 0;
  for (const auto& file : fs::recursive_directory_iterator(cache.path())) {
    if (file.path().extension() != kBlockExtension) continue;
    if (number % 3 == 0) fs::remove(file.path());
    if (number % 3 == 1) {
      std::fstream(file.path(), std::ios::in | std::ios::out | std::ios::binary).seekp(100).write("xyz", 3);
    }
    ++number;
  }
  EXPECT_GT(number, 10);
  TokenStream stream(stream_of(files, cache.path()));
  EXPECT_EQ(ids_of(stream, 0, 0, size), expected.ids);
}

TEST(TokenStream, KeepsNoMoreThanItsLimit) {
  const TemporaryFolder folder, cache;
  const auto files = texts_of_all_kinds(folder);
  const Materialised expected = materialised(folder, files);
  const auto size = static_cast<int64_t>(expected.ids.size());
  StreamOptions options = stream_of(files, cache.path());
  options.most_cache_bytes = 800'000;
  options.kept_blocks = 2;
  TokenStream stream(options);
  for (int64_t pass = 0; pass < 2; ++pass) {
    std::vector<int64_t> all;
    for (int64_t begin = 0; begin < size; begin += 25'000) {
      const auto part = ids_of(stream, pass, begin, std::min<int64_t>(25'000, size - begin));
      all.insert(all.end(), part.begin(), part.end());
      EXPECT_LT(bytes_of_blocks(cache.path()), 1'200'000);
    }
    EXPECT_EQ(all, expected.ids);
  }
}

TEST(TokenStream, ShufflesTheOrderOfTextsAnewInEachPass) {
  const TemporaryFolder folder, cache;
  std::vector<std::string> files;
  for (int i = 0; i < 12; ++i) {
    files.push_back(folder.write("t" + std::to_string(i) + ".txt",
                                 std::string(static_cast<size_t>(100 + i), static_cast<char>('a' + i))));
  }
  StreamOptions options = stream_of(files, cache.path());
  options.tokenizer = "bytes";
  options.shuffle = true;
  options.seed = 5;
  TokenStream stream(options);
  const int64_t size = stream.count_pass();
  EXPECT_EQ(size, 12 * 100 + 66);
  std::vector<std::vector<int64_t>> passes;
  for (int64_t pass = 0; pass < 3; ++pass) passes.push_back(ids_of(stream, pass, 0, size));
  EXPECT_NE(passes[0], passes[1]);
  EXPECT_NE(passes[1], passes[2]);
  std::vector<int64_t> sorted = passes[0], other = passes[1];
  std::ranges::sort(sorted);
  std::ranges::sort(other);
  EXPECT_EQ(sorted, other);
  // Another process that goes on in the second pass sees the same order.
  TokenStream second(options);
  second.resume(stream.state(1, 500));
  const auto ids = ids_of(second, 1, 500, 300);
  EXPECT_TRUE(std::equal(ids.begin(), ids.end(), passes[1].begin() + 500));
  options.seed = 6;
  TokenStream seeded(options);
  EXPECT_NE(ids_of(seeded, 0, 0, size), passes[0]);
}

TEST(TokenStream, RecoversFromAWriterThatWasKilled) {
  const TemporaryFolder folder, cache;
  const std::vector<std::string> files = {folder.write("a.jsonl", json_lines(1200, 1000, 3))};
  const Materialised expected = materialised(folder, files);
  const auto size = static_cast<int64_t>(expected.ids.size());
  {
    TokenStream stream(stream_of(files, cache.path()));
    ids_of(stream, 0, 0, 30'000);
  }
  for (const auto& file : fs::recursive_directory_iterator(cache.path())) {
    if (file.path().filename() != "index.jsonl") continue;
    std::ofstream(file.path(), std::ios::app) << R"({"token":1000000,"tok)";
    std::ofstream(file.path().parent_path() / "77-20.tokens.tmp.4194000") << "half a block";
  }
  TokenStream stream(stream_of(files, cache.path()));
  EXPECT_EQ(ids_of(stream, 0, 0, size), expected.ids);
}

TEST(TokenStream, NamesATextThatHasChangedOrIsGone) {
  const TemporaryFolder folder, cache;
  const std::vector<std::string> files = {folder.write("a.txt", prose(50'000, 1)),
                                          folder.write("b.txt", prose(50'000, 2)),
                                          folder.write("c.txt", prose(50'000, 3))};
  StreamOptions options = stream_of(files, cache.path());
  options.ahead_tokens = 10;
  options.block_tokens = 10;
  TokenStream stream(options);
  ids_of(stream, 0, 0, 10);
  fs::remove(files[1]);
  folder.write("c.txt", "something else");
  EXPECT_EQ(message_of([&] { stream.count_pass(); }),
            "the text " + files[1] +
                " cannot be opened (No such file or directory); give the path of a readable file");
  folder.write("b.txt", prose(50'000, 2));
  TokenStream again(options);
  folder.write("c.txt", "something else again");
  EXPECT_EQ(
      message_of([&] { again.count_pass(); }),
      "the text " + files[2] +
          " has changed since the run began; put it back, or start the run again with the present texts");
}

TEST(TokenStream, NamesARowThatCannotBeUsed) {
  const TemporaryFolder folder, cache;
  const std::string good = json_lines(3, 10, 1);
  const std::string path = folder.write("a.jsonl", good + "{\"other\": 1}\n" + good + "no json\n" + good);
  TokenStream strict(stream_of({path}, cache / "strict"));
  EXPECT_EQ(message_of([&] { strict.count_pass(); }),
            "line 5 of " + path +
                " must have a string \"text\", but has the fields \"other\"; correct it, set the field with "
                "data.text_column, or skip such rows with data.skip_bad");
  StreamOptions options = stream_of({path}, cache / "tolerant");
  options.skip_bad = 2;
  TokenStream tolerant(options);
  TokenizeOptions same = tokenize_options(folder, {path});
  fs::create_directories(folder / "out");
  same.tokenizer = kGpt2Kind;
  same.skip_bad = 2;
  const int64_t tokens = tokenize(same).tokens;
  EXPECT_EQ(tolerant.count_pass(), tokens);
  EXPECT_EQ(ids_of(tolerant, 0, 0, tokens), tokenized_ids(same.output));
  options.skip_bad = 1;
  options.folder = cache / "one";
  TokenStream one(options);
  EXPECT_NE(message_of([&] { one.count_pass(); }).find("more than 1 rows, which data.skip_bad allows"),
            std::string::npos);
}

TEST(TokenStream, NamesAFileThatIsDamagedOrCutShort) {
  const TemporaryFolder folder, cache;
  const std::string compressed = zstd(json_lines(2000, 500, 1));
  const std::string path = folder.write("cut.jsonl.zst", compressed.substr(0, compressed.size() / 2));
  TokenStream stream(stream_of({path}, cache.path()));
  EXPECT_NE(message_of([&] { stream.count_pass(); }).find("the text " + path + " is cut short"),
            std::string::npos);
  EXPECT_EQ(message_of([&] { TokenStream(stream_of({folder.write("empty.txt", "")}, cache.path())); }),
            "the text " + (folder / "empty.txt").string() + " is empty; leave it out");
  EXPECT_EQ(message_of([&] { TokenStream(stream_of({folder / "none.txt"}, cache.path())); }),
            "the text " + (folder / "none.txt").string() +
                " cannot be opened (No such file or directory); give the path of a readable file");
}

TEST(TokenStream, ReadsOneHugeLine) {
  const TemporaryFolder folder, cache;
  const nlohmann::json row = {{"text", prose(5'000'000, 3)}};
  const std::vector<std::string> files = {
      folder.write("huge.jsonl", row.dump() + "\n" + json_lines(20, 50, 1)),
      folder.write("huge.txt", std::string(3'000'000, 'x') + " end")};
  const Materialised expected = materialised(folder, files);
  TokenStream stream(stream_of(files, cache.path()));
  EXPECT_EQ(ids_of(stream, 0, 0, static_cast<int64_t>(expected.ids.size())), expected.ids);
}

TEST(TokenStream, RefusesAFolderThatCannotBeWritten) {
  const TemporaryFolder folder;
  const std::string path = folder.write("a.txt", prose(1000, 1));
  TokenStream stream(stream_of({path}, folder.write("file", "x") / "below"));
  const std::string message = message_of([&] { stream.count_pass(); }, ErrorKind::kIo);
  EXPECT_NE(message.find("; set FSDP_CACHE_DIR to a folder with enough room that you may write to"),
            std::string::npos)
      << message;
}

}  // namespace
}  // namespace fsdp::data
