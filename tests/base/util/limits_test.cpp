#include "base/util/limits.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <fstream>
#include <list>
#include <new>
#include <stdexcept>

#include "base/util/error.h"

namespace fsdp::util {
namespace {

void limit(__rlimit_resource_t resource, rlim_t value) {
  const rlimit both{value, value};
  ASSERT_EQ(::setrlimit(resource, &both), 0);
}

/// Runs the body in a process of its own, which ends with the kind of the error that the body throws and
/// prints its message.
template <typename Body>
void end_with_error_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    ::_exit(error.exit_code());
  }
  ::_exit(0);
}

TEST(LimitsDeathTest, NamesTheLimitsWhereThereIsNoOtherThread) {
  // Each thread maps a stack.
  EXPECT_EXIT(end_with_error_of([] {
                limit(RLIMIT_AS, rlim_t{1} << 20);
                std::list<std::thread> threads;
                for (int i = 0; i < 1000; ++i) {
                  threads.push_back(start_thread([] { std::this_thread::sleep_for(std::chrono::hours(1)); }));
                }
              }),
              ::testing::ExitedWithCode(2), "another thread .*ulimit -u.*pids.max.*OMP_NUM_THREADS");
}

TEST(LimitsDeathTest, RefusesAProcessThatMayOpenFewFiles) {
  EXPECT_EXIT(end_with_error_of([] {
                limit(RLIMIT_NOFILE, 63);
                prepare_for_limits();
              }),
              ::testing::ExitedWithCode(2), "only 63 files .*ulimit -n.* at least 64;");
}

TEST(LimitsDeathTest, RaisesTheLimitOnOpenFilesAsFarAsItMay) {
  const auto soft_limit = [](rlim_t soft, rlim_t hard) {
    rlimit files{soft, hard};
    if (::setrlimit(RLIMIT_NOFILE, &files) != 0) ::_exit(99);
    prepare_for_limits();
    ::getrlimit(RLIMIT_NOFILE, &files);
    std::fprintf(stderr, "now %d\n", static_cast<int>(files.rlim_cur));
    ::_exit(0);
  };
  EXPECT_EXIT(soft_limit(16, 200), ::testing::ExitedWithCode(0), "now 200");
  EXPECT_EXIT(soft_limit(16, 5000), ::testing::ExitedWithCode(0), "now 1024");
  EXPECT_EXIT(soft_limit(2000, 5000), ::testing::ExitedWithCode(0), "now 2000");
}

TEST(LimitsDeathTest, MakesRoomForFilesOrSaysHowManyAreAllowedAndWhatToDo) {
  const auto room = [](rlim_t soft, rlim_t hard, int64_t more) {
    end_with_error_of([&] {
      rlimit files{soft, hard};
      if (::setrlimit(RLIMIT_NOFILE, &files) != 0) ::_exit(99);
      make_room_for_files(more, "300 nodes are to meet here");
      ::getrlimit(RLIMIT_NOFILE, &files);
      std::fprintf(stderr, files.rlim_cur > soft ? "raised\n" : "as it was\n");
    });
  };
  EXPECT_EXIT(room(200, 1000, 100), ::testing::ExitedWithCode(0), "as it was");
  EXPECT_EXIT(room(200, 1000, 300), ::testing::ExitedWithCode(0), "raised");
  EXPECT_EXIT(room(200, 250, 300), ::testing::ExitedWithCode(2),
              "300 nodes are to meet here.* only 250 .ulimit -Hn.*LimitNOFILE=3[0-9][0-9] ");
}

TEST(LimitsDeathTest, MakesAFileThatGrowsTooLargeAnErrorThatNamesTheLimit) {
  EXPECT_EXIT(end_with_error_of([] {
                prepare_for_limits();
                limit(RLIMIT_FSIZE, 8192);
                std::FILE* file = std::tmpfile();
                for (int i = 0; i < 10000 && std::fputs("12345678", file) >= 0 && std::fflush(file) == 0;
                     ++i) {
                }
                fail(ErrorKind::kIo, errno_text(errno));
              }),
              ::testing::ExitedWithCode(7), "File too large .*ulimit -f, is 8192 bytes");
}

TEST(Limits, AreNamedWhereALibraryIsRefusedMemory) {
  const Error torch = without_backtrace(
      std::runtime_error("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't "
                         "allocate memory: you tried to allocate 16785408 bytes. Error code 12 (Cannot "
                         "allocate memory)\nframe #0"));
  EXPECT_STREQ(torch.what(), "out of memory: this process was refused 16785408 bytes by the system");
  EXPECT_STREQ(without_backtrace(std::bad_alloc()).what(),
               "out of memory: this process was refused an allocation by the system");
  EXPECT_STREQ(without_backtrace(std::runtime_error("what it is\nframe #0")).what(), "what it is");
  EXPECT_EQ(without_backtrace(Error(ErrorKind::kData, "a\nb")).kind(), ErrorKind::kData);
  const std::system_error thread(std::make_error_code(std::errc::resource_unavailable_try_again));
  EXPECT_EQ(without_backtrace(thread).kind(), ErrorKind::kUsage);
}

}  // namespace
}  // namespace fsdp::util
