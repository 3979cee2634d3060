#include "data/tokens/lost_pages.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "data/tokens/mapped_file.h"
#include "support/temporary_folder.h"

namespace fsdp::data {
namespace {

using LostPagesDeathTest = ::testing::Test;

int touch_all(const MappedFile& file) {
  int sum = 0;
  for (int64_t at = 0; at < file.size_bytes(); at += 4096)
    sum += static_cast<volatile const char*>(file.data())[at];
  return sum;
}

TEST(LostPagesDeathTest, NameTheFileThatWasTruncatedAndAreAnIoError) {
  testing::TemporaryFolder folder;
  const auto other = folder.write("other.bin", std::string(65536, 'x')),
             path = folder.write("tokens.bin", std::string(65536, 'x'));
  const auto body = [&] {
    exit_at_lost_pages();
    const MappedFile intact("token file", other);
    auto closed = std::make_unique<MappedFile>("token file", other);
    const MappedFile file("token file", path);
    closed.reset();
    std::filesystem::resize_file(path, 4096);
    std::exit(touch_all(intact) == 0 ? 1 : touch_all(file));
  };
  EXPECT_EXIT(body(), ::testing::ExitedWithCode(7), "error: the token file .*tokens.bin has lost pages");
}

TEST(LostPagesDeathTest, LeaveOtherCausesAsTheyAre) {
  testing::TemporaryFolder folder;
  const auto path = folder.write("tokens.bin", std::string(65536, 'x'));
  const auto body = [&] {
    exit_at_lost_pages();
    const MappedFile file("token file", path);
    std::raise(SIGBUS);
    std::raise(SIGBUS);
  };
  EXPECT_EXIT(body(), ::testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace fsdp::data
