#include "base/util/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/util/error.h"
#include "base/util/regular_file.h"

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

// A pipe takes 64 KiB, and a signal ends the call that waits for room.
TEST(WriteAll, ContinuesWhereAWriteHasStopped) {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  struct sigaction before {};
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  std::string content;
  for (int i = 0; content.size() < 300'000; ++i) content += std::to_string(i);
  std::thread writer([&] {
    write_all(ends[1], content, "pipe");
    ::close(ends[1]);
  });
  const int capacity = ::fcntl(ends[1], F_GETPIPE_SZ);
  for (int waiting = 0; waiting < capacity;) {
    ASSERT_EQ(::ioctl(ends[0], FIONREAD, &waiting), 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (int i = 0; i < 3; ++i) {  // between the last byte and its wait, the call would not notice
    ::pthread_kill(writer.native_handle(), SIGUSR1);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::string received;
  char block[4096];
  for (ssize_t count; (count = ::read(ends[0], block, sizeof block)) > 0;) {
    received.append(block, static_cast<size_t>(count));
  }
  writer.join();
  ::close(ends[0]);
  ::sigaction(SIGUSR1, &before, nullptr);
  EXPECT_EQ(received.size(), content.size());
  EXPECT_TRUE(received == content);
}

TEST(WriteAll, NamesTheFileThatCannotBeWritten) {
  const int full = ::open("/dev/full", O_WRONLY);
  try {
    write_all(full, "x", "the/file");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIo);
    EXPECT_STREQ(error.what(), "cannot write the/file: No space left on device");
  }
  ::close(full);
}

TEST(HubRemedy, IsForNamesThatCanBeOnTheHub) {
  for (const char* name : {"gpt2", "meta-llama/Llama-3.2-1B", "Qwen/Qwen2.5-0.5B"}) {
    EXPECT_NE(hub_remedy(name).find(std::string("hf download ") + name + " "), std::string::npos) << name;
  }
  for (const char* name : {"", "/models/gpt2", "./gpt2", "../a/b", "a/b/c", "models/gpt2.safetensors",
                           "models/gpt2.gguf", "tokenizer.json", "a b/c", "owner/", "/name", "~/models"}) {
    EXPECT_EQ(hub_remedy(name), "") << name;
  }
}

TEST_F(FileTest, TemporaryFilesFollowNoLink) {
  std::ofstream(folder_ / "victim") << "precious";
  fs::create_symlink(folder_ / "victim", temporary_name(folder_ / "a.txt"));
  write_file_atomically(folder_ / "a.txt", "hello");
  EXPECT_EQ(read_file(folder_ / "victim"), "precious");
  EXPECT_EQ(read_file(folder_ / "a.txt"), "hello");
  EXPECT_FALSE(fs::is_symlink(folder_ / "a.txt"));
  // Also one that a killed process of the same number has left, and the probe of a folder.
  std::ofstream(temporary_name(folder_ / "a.txt")) << "left";
  write_file_atomically(folder_ / "a.txt", "again");
  EXPECT_EQ(read_file(folder_ / "a.txt"), "again");
  fs::create_symlink(folder_ / "victim", folder_ / concat(".probe-", ::getpid()));
  make_writable_folder(folder_);
  EXPECT_EQ(read_file(folder_ / "victim"), "precious");
}

TEST_F(FileTest, APipeInPlaceOfAFileIsRefusedAtOnce) {
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const fs::path& path : {pipe, fs::path("/dev/zero"), folder_}) {
    try {
      read_file(path);
      FAIL() << path;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("must be a file, but is a"), std::string::npos)
          << error.what();
    }
    EXPECT_EQ(read_beginning(path, 10), "");
    EXPECT_THROW(read_lines(path, 10, [](const std::string&) {}), Error);
  }
}

TEST_F(FileTest, LinesAreReadUpToALength) {
  std::ofstream(folder_ / "a.txt") << "one\n\n" << std::string(200'000, 'x') << "\nlast";
  std::vector<std::string> lines;
  read_lines(folder_ / "a.txt", 5, [&](const std::string& line) { lines.push_back(line); });
  EXPECT_EQ(lines, (std::vector<std::string>{"one", "", "xxxxx", "last"}));
  EXPECT_EQ(read_beginning(folder_ / "a.txt", 5), "one\n\n");
}

}  // namespace
}  // namespace fsdp::util
