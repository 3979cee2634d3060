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

TEST(LaunchOptions, NameTheOptionThatIsOutOfRange) {
  EXPECT_EQ(refusal(valid_options()), "");
  LaunchOptions options = valid_options();
  options.nnodes = {2, 1};
  EXPECT_THAT(refusal(options), HasSubstr("--nnodes"));
  options = valid_options();
  options.max_restarts = -1;
  EXPECT_THAT(refusal(options), HasSubstr("--max-restarts"));
  options = valid_options();
  options.monitor_interval_seconds = 0;
  EXPECT_THAT(refusal(options), HasSubstr("--monitor-interval"));
  options = valid_options();
  options.local_ranks_filter = {1};
  EXPECT_THAT(refusal(options), HasSubstr("--local-ranks-filter"));
  options = valid_options();
  options.tee.of_local_rank = {{1, 3}};
  EXPECT_THAT(refusal(options), HasSubstr("--tee"));
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

TEST(LaunchOptions, NeedAMeetingPlaceForSeveralNodes) {
  LaunchOptions options = valid_options();
  options.nnodes = {1, 2};
  EXPECT_THAT(refusal(options), HasSubstr("--rdzv-backend c10d"));
  options.rendezvous.backend = RendezvousOptions::Backend::kC10d;
  EXPECT_THAT(refusal(options), HasSubstr("--rdzv-endpoint"));
  options.rendezvous.host = "host0";
  EXPECT_THAT(refusal(options), HasSubstr("--rdzv-endpoint"));
  options.rendezvous.port = 29400;
  EXPECT_EQ(refusal(options), "");
}

}  // namespace
}  // namespace fsdp::launch
