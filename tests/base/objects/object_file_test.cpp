// ObjectFile and the web store against tests/support/object_server.py.

#include "base/objects/object_file.h"

#include <gmock/gmock.h>

#include <atomic>
#include <fstream>
#include <random>
#include <thread>

#include "base/objects/retrying_store.h"
#include "base/objects/web_store.h"
#include "base/util/error.h"
#include "support/object_server.h"
#include "support/temporary_folder.h"

namespace fsdp::objects {
namespace {

using fsdp::testing::ObjectServer;
using fsdp::testing::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kBytes = 5'300'000;

std::string random_bytes(int64_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string text(static_cast<size_t>(bytes), '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

class ObjectFiles : public ::testing::Test {
 protected:
  ObjectFiles() : content_(random_bytes(kBytes, 1)) {
    std::filesystem::create_directories(files_ / "web");
    files_.write("web/a.bin", content_);
    server_ = std::make_unique<ObjectServer>(files_.path().string());
    store_ = make_store({.attempts = 20, .first_pause = std::chrono::milliseconds(1)});
  }

  std::unique_ptr<RetryingStore> make_store(RetryOptions options) {
    return std::make_unique<RetryingStore>(std::make_unique<WebStore>(std::make_shared<WebClient>()),
                                           options);
  }
  std::unique_ptr<ObjectFile> open(ObjectCache& cache) {
    return std::make_unique<ObjectFile>(server_->web("a.bin"), *store_, cache);
  }
  std::string read(const ObjectFile& file, int64_t offset, int64_t bytes) {
    std::string text(static_cast<size_t>(bytes), '\0');
    file.read_at(offset, bytes, text.data());
    return text;
  }
  int64_t requests() { return server_->counts()["requests"].get<int64_t>(); }

  TemporaryFolder files_, cache_folder_;
  std::string content_;
  std::unique_ptr<ObjectServer> server_;
  std::unique_ptr<RetryingStore> store_;
};

TEST_F(ObjectFiles, FetchesOnlyTheBlocksThatAreRead) {
  ObjectCache cache(cache_folder_.path(), int64_t{1} << 30);
  const auto file = open(cache);
  EXPECT_EQ(file->size_bytes(), kBytes);
  EXPECT_EQ(read(*file, 2'000'000, 3000), content_.substr(2'000'000, 3000));
  EXPECT_EQ(file->fetched_bytes(), 1 << 20);
  EXPECT_EQ(read(*file, kBytes - 10, 10), content_.substr(kBytes - 10));
  EXPECT_LT(file->fetched_bytes(), 2 << 20);
}

TEST_F(ObjectFiles, ReadsFromTheCacheWithoutRequests) {
  ObjectCache cache(cache_folder_.path(), int64_t{1} << 30);
  EXPECT_EQ(read(*open(cache), 0, kBytes), content_);
  const auto again = open(cache);
  server_->set({{"seed", 1}});
  EXPECT_EQ(read(*again, 0, kBytes), content_);
  EXPECT_EQ(requests(), 0);
}

TEST_F(ObjectFiles, FetchesABlockThatIsDamagedInTheCacheAgain) {
  ObjectCache cache(cache_folder_.path(), int64_t{1} << 30);
  EXPECT_EQ(read(*open(cache), 0, kBytes), content_);
  int damaged = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(cache.blocks())) {
    if (entry.path().extension() != ".block") continue;
    std::fstream block(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    if (damaged++ % 2 == 0) {
      block.seekp(100);
      block.put('?').put('!');
    } else {
      std::filesystem::resize_file(entry.path(), 1000);
    }
  }
  EXPECT_EQ(damaged, 6);
  EXPECT_EQ(read(*open(cache), 0, kBytes), content_);
}

TEST_F(ObjectFiles, ReadsWithoutACache) {
  ObjectCache cache(cache_folder_.path(), 0);
  const auto file = open(cache);
  EXPECT_EQ(read(*file, 100'000, 300'000), content_.substr(100'000, 300'000));
  EXPECT_LE(file->fetched_bytes(), 450'000);
  EXPECT_TRUE(std::filesystem::is_empty(cache.blocks()));
}

TEST_F(ObjectFiles, KeepsTheCacheBelowItsLimit) {
  constexpr int64_t kLimit = 3 << 20;
  ObjectCache cache(cache_folder_.path(), kLimit);
  const auto file = open(cache);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(read(*file, 0, kBytes), content_);
  cache.shrink();
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(cache.blocks())) {
    if (entry.is_regular_file()) bytes += static_cast<int64_t>(entry.file_size());
  }
  EXPECT_LE(bytes, kLimit);
  EXPECT_GT(bytes, kLimit / 2);
}

TEST_F(ObjectFiles, ACacheKeepsTheCopiesOfTheDayWhateverItsLimit) {
  ObjectCache cache(cache_folder_.path(), 0);
  const std::filesystem::path fresh = cache.copies() / "fresh", old = cache.copies() / "old";
  for (const auto& path : {fresh, old}) std::ofstream(path) << "text";
  std::filesystem::last_write_time(old,
                                   std::filesystem::file_time_type::clock::now() - std::chrono::hours(30));
  cache.added(1);
  EXPECT_TRUE(std::filesystem::exists(fresh));
  EXPECT_FALSE(std::filesystem::exists(old));
}

TEST_F(ObjectFiles, ThreadsFetchABlockOnce) {
  ObjectCache cache(cache_folder_.path(), int64_t{1} << 30);
  const auto file = open(cache);
  server_->set({{"latency_ms", 20}});
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&] { EXPECT_EQ(read(*file, 0, kBytes), content_); });
    }
  }
  EXPECT_EQ(requests(), 6);
}

TEST_F(ObjectFiles, ReadsTheRightBytesThroughFaults) {
  for (const int64_t limit : {int64_t{0}, int64_t{1} << 21}) {
    ObjectCache cache(cache_folder_.path(), limit);
    auto file = open(cache);
    server_->set({{"faults", {"503", "cut", "reset"}}, {"fault_share", 0.4}, {"seed", 7}});
    std::mt19937_64 random(limit);
    int64_t faults = 0;
    for (int i = 0; i < 2000 && faults < 100; ++i) {
      const int64_t offset = static_cast<int64_t>(random() % (kBytes - 5000));
      ASSERT_EQ(read(*file, offset, 5000), content_.substr(static_cast<size_t>(offset), 5000));
      if (i % 20 != 0) continue;
      faults = server_->counts()["faults"].get<int64_t>();
      file = open(cache);  // without a cache, this one has read all blocks before long
    }
    EXPECT_GE(faults, 100);
    server_->set({{"faults", nlohmann::json::array()}});
  }
}

TEST_F(ObjectFiles, NameTheObjectWhenAStoreStaysDown) {
  ObjectCache cache(cache_folder_.path(), int64_t{1} << 30);
  store_ = make_store({.attempts = 3, .first_pause = std::chrono::milliseconds(1)});
  const auto file = open(cache);
  server_->set({{"faults", {"503"}}, {"fault_share", 1.0}});
  try {
    read(*file, 0, 10);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIo);
    EXPECT_THAT(error.what(), AllOf(HasSubstr(server_->web("a.bin")), HasSubstr("each of 3 attempts"),
                                    HasSubstr("HTTP 503")));
  }
}

TEST_F(ObjectFiles, RefuseAnObjectThatChangesWhileItIsRead) {
  for (const int size : {10, 3 << 20, 4 << 20}) {
    ObjectCache cache(cache_folder_.path(), int64_t{1} << 30);
    server_->set({{"write", {{"web/a.bin", {"x", 3 << 20}}}}});
    const auto file = open(cache);
    EXPECT_EQ(read(*file, 0, 3), "xxx");
    server_->set({{"write", {{"web/a.bin", {"y", size}}}}});
    try {
      read(*file, 2 << 20, 10);
      FAIL() << "expected an error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      EXPECT_THAT(error.what(), HasSubstr(server_->web("a.bin")));
    }
    // A new reader reads the new object, and none of the blocks of the old one.
    const auto reopened = open(cache);
    EXPECT_EQ(read(*reopened, 0, 3), "yyy");
  }
}

TEST_F(ObjectFiles, RefuseServersThatSendWholeFilesOnly) {
  server_->set({{"ranges", false}});
  ObjectCache cache(cache_folder_.path(), int64_t{1} << 30);
  try {
    open(cache);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("whole files only"));
  }
  const auto object = store_->find(server_->web("a.bin"));
  ASSERT_TRUE(object);
  store_->download(server_->web("a.bin"), *object, files_ / "copy");
  EXPECT_EQ(files_.read("copy"), content_);
}

TEST_F(ObjectFiles, RefuseAMissingObject) {
  ObjectCache cache(cache_folder_.path(), int64_t{1} << 30);
  try {
    ObjectFile(server_->web("b.bin"), *store_, cache);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    EXPECT_THAT(error.what(), HasSubstr("does not exist"));
  }
}

}  // namespace
}  // namespace fsdp::objects
