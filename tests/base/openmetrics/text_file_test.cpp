#include "base/openmetrics/text_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>

#include "base/util/error.h"
#include "base/util/file.h"
#include "support/log_lines.h"
#include "support/temporary_folder.h"

namespace fsdp::openmetrics {
namespace {

void wait_until(const std::function<bool()>& condition) {
  for (int i = 0; i < 1000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(condition());
}

TEST(TextFile, FollowsTheTextAndHasItsLastState) {
  const testing::TemporaryFolder folder;
  const auto path = folder / "run.prom";
  std::atomic<int> number = 0;
  {
    const TextFile file(
        path, [&] { return std::to_string(number) + "\n"; }, 0.01);
    EXPECT_EQ(util::read_file(path).size(), 2u);
    number = 7;
    wait_until([&] { return util::read_file(path) == "7\n"; });
  }
  {
    const TextFile file(
        path, [&] { return std::to_string(number) + "\n"; }, 600);
    number = 8;
  }
  EXPECT_EQ(util::read_file(path), "8\n");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(TextFile, NoReaderSeesAPart) {
  const testing::TemporaryFolder folder;
  const auto path = folder / "run.prom";
  const std::string text(1 << 20, 'x');
  const TextFile file(
      path, [&] { return text; }, 0);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(util::read_file(path).size(), text.size());
}

TEST(TextFile, IsReadableForTheCollectorWhateverTheUmask) {
  const testing::TemporaryFolder folder;
  const mode_t before = ::umask(0077);
  {
    const TextFile file(folder / "run.prom", [] { return std::string("x 1\n"); });
  }
  ::umask(before);
  struct stat found {};
  ASSERT_EQ(::stat((folder / "run.prom").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0644u);
}

TEST(TextFile, FailsAtTheStartAndLaterOnlyWarns) {
  const testing::TemporaryFolder folder;
  try {
    const TextFile file(folder / "missing/run.prom", [] { return std::string(); });
    ADD_FAILURE();
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIo);
    EXPECT_NE(std::string(error.what()).find("run.prom: No such file"), std::string::npos) << error.what();
  }
  std::filesystem::create_directory(folder / "sub");
  const std::string log = testing::log_lines([&] {
    std::atomic<int> calls = 0;
    const TextFile file(
        folder / "sub/run.prom", [&] { return std::to_string(++calls); }, 0.01);
    std::filesystem::remove_all(folder / "sub");
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    std::filesystem::create_directory(folder / "sub");
    wait_until([&] { return std::filesystem::exists(folder / "sub/run.prom"); });
  });
  const size_t first = log.find("cannot create");
  EXPECT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find("cannot create", first + 1), std::string::npos) << log;  // once, not every time
}

}  // namespace
}  // namespace fsdp::openmetrics
