#include <gtest/gtest.h>
#include <sys/stat.h>

#include "launch/output_pump.h"
#include "support/temporary_folder.h"
#include "util/error.h"
#include "util/file.h"
#include "util/log.h"

namespace fsdp::launch {
namespace {

TEST(RankLog, ContinuesAFileThatIsThere) {
  testing::TemporaryFolder folder;
  for (const char* text : {"first", "second"}) {
    RankLog log(folder.path() / "rank0.log");
    log.line(text);
    log.flush();
  }
  EXPECT_EQ(util::read_file(folder.path() / "rank0.log"), "first\nsecond\n");
}

TEST(RankLog, RefusesWhatIsNoFile) {
  testing::TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder.path() / "pipe").c_str(), 0600), 0);
  EXPECT_THROW(RankLog(folder.path() / "pipe"), util::Error);
  EXPECT_THROW(RankLog(folder.path()), util::Error);
  EXPECT_THROW(RankLog(folder.path() / "missing" / "rank0.log"), util::Error);
}

}  // namespace
}  // namespace fsdp::launch
