#include "util/file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "util/error.h"

namespace fsdp::util {
namespace {
namespace fs = std::filesystem;

class FileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / concat("fsdp-file-test-", ::getpid());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path folder_;
};

TEST_F(FileTest, WritesAndReadsBack) {
  write_file_atomically(folder_ / "a.txt", "hello");
  write_file_atomically(folder_ / "a.txt", "again");
  EXPECT_EQ(read_file(folder_ / "a.txt"), "again");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

TEST_F(FileTest, FailuresNameThePathAndLeaveNothing) {
  try {
    write_file_atomically(folder_ / "no" / "a.txt", "hello");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIo);
    EXPECT_NE(std::string(error.what()).find("a.txt"), std::string::npos);
  }
  EXPECT_THROW(read_file(folder_ / "missing"), Error);
  EXPECT_THROW(read_file(folder_), Error);
}

TEST_F(FileTest, AFolderThatCannotBeWrittenIsRefused) {
  make_writable_folder(folder_ / "x" / "y");
  EXPECT_TRUE(fs::is_empty(folder_ / "x" / "y"));
  std::ofstream(folder_ / "file") << "x";
  EXPECT_THROW(make_writable_folder(folder_ / "file"), Error);
  EXPECT_THROW(make_writable_folder(folder_ / "file" / "below"), Error);
  EXPECT_THROW(make_writable_folder("/proc/fsdp-cannot-be-made"), Error);
}

TEST(HubRemedy, IsForNamesThatCanBeOnTheHub) {
  for (const char* name : {"gpt2", "meta-llama/Llama-3.2-1B", "Qwen/Qwen2.5-0.5B"}) {
    EXPECT_NE(hub_remedy(name).find(std::string("hf download ") + name + " "), std::string::npos) << name;
  }
  for (const char* name : {"", "/models/gpt2", "./gpt2", "../a/b", "a/b/c", "models/gpt2.safetensors",
                           "tokenizer.json", "a b/c", "owner/", "/name", "~/models"}) {
    EXPECT_EQ(hub_remedy(name), "") << name;
  }
}

}  // namespace
}  // namespace fsdp::util
