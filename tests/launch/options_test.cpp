#include "launch/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "util/error.h"

namespace fsdp::launch {
namespace {

using ::testing::HasSubstr;

LaunchOptions valid_options() {
  LaunchOptions options;
  options.program = {"true"};
  return options;
}

std::string refusal(const LaunchOptions& options) {
  try {
    validate(options);
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), util::ErrorKind::kUsage);
    return error.what();
  }
  return "";
}

TEST(LaunchOptions, CountWorkersByNumberOrByCores) {
  EXPECT_EQ(workers_from_text("3"), 3);
  EXPECT_GE(available_cores(), 1);
  EXPECT_EQ(workers_from_text("auto"), available_cores());
  EXPECT_EQ(workers_from_text("cpu"), available_cores());
}

TEST(LaunchOptions, RefuseOtherCountsOfWorkers) {
  for (const char* text : {"0", "-1", "", "2x", "many", "99999999999999999999", "1.5", " 2"}) {
    EXPECT_THROW(workers_from_text(text), util::Error) << text;
  }
}

TEST(LaunchOptions, TakeOneNodeOnly) {
  EXPECT_EQ(nodes_from_text("1"), 1);
  EXPECT_EQ(nodes_from_text("1:1"), 1);
  EXPECT_THROW(nodes_from_text("2"), util::Error);
  EXPECT_THROW(nodes_from_text("1:4"), util::Error);
}

TEST(LaunchOptions, NameTheOptionThatIsOutOfRange) {
  EXPECT_EQ(refusal(valid_options()), "");
  LaunchOptions options = valid_options();
  options.nnodes = 2;
  EXPECT_THAT(refusal(options), HasSubstr("--nnodes"));
  options = valid_options();
  options.node_rank = 1;
  EXPECT_THAT(refusal(options), HasSubstr("--node-rank"));
  options = valid_options();
  options.master_port = 65536;
  EXPECT_THAT(refusal(options), HasSubstr("--master-port"));
  options = valid_options();
  options.master_addr = "";
  EXPECT_THAT(refusal(options), HasSubstr("--master-addr"));
  for (double seconds : {-1.0, std::numeric_limits<double>::quiet_NaN(), 1e300}) {
    options = valid_options();
    options.shutdown_timeout_seconds = seconds;
    EXPECT_THAT(refusal(options), HasSubstr("--shutdown-timeout"));
  }
  options = valid_options();
  options.program.clear();
  EXPECT_THAT(refusal(options), HasSubstr("program"));
}

}  // namespace
}  // namespace fsdp::launch
