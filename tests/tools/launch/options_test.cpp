#include "tools/launch/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/util/error.h"
#include "base/util/log.h"
#include "tools/launch/command_line.h"
#include "tools/launch/node_hardware.h"

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
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
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

TEST(LaunchOptions, FitReplicasToTheWorkersAndNodes) {
  LaunchOptions options = valid_options();
  options.nproc_per_node = 6;
  options.replica_size = 2;
  options.min_replicas = 3;
  options.stop_timeout_seconds = 1;
  EXPECT_EQ(refusal(options), "");
  options.min_replicas = 4;
  EXPECT_THAT(refusal(options), HasSubstr("--min-replicas must be at most 3"));
  options.min_replicas = 1;
  options.replica_size = 4;
  EXPECT_THAT(refusal(options),
              HasSubstr("--nproc-per-node must be a multiple of --replica-size, which is 4, but is 6"));
  options.replica_size = 2;
  options.master_port = 4711;
  EXPECT_THAT(refusal(options), HasSubstr("--master-port"));
  options.master_port = 0;
  options.nnodes = {1, 2};
  options.rendezvous.backend = RendezvousKind::kC10d;
  options.rendezvous.host = "host0";
  options.rendezvous.port = 1;
  EXPECT_THAT(refusal(options), HasSubstr("--replica-size requires --nnodes N"));
  options = valid_options();
  options.min_replicas = 2;
  EXPECT_THAT(refusal(options), HasSubstr("--min-replicas has no effect without --replica-size"));
  options = valid_options();
  options.stop_timeout_seconds = 2;
  EXPECT_THAT(refusal(options), HasSubstr("--stop-timeout has no effect without --replica-size"));
}

TEST(LaunchOptions, NeedAMeetingPlaceForSeveralNodes) {
  LaunchOptions options = valid_options();
  options.nnodes = {1, 2};
  EXPECT_THAT(refusal(options), HasSubstr("--rdzv-backend c10d"));
  options.rendezvous.backend = RendezvousKind::kC10d;
  EXPECT_THAT(refusal(options), HasSubstr("--rdzv-endpoint"));
  options.rendezvous.host = "host0";
  EXPECT_THAT(refusal(options), HasSubstr("--rdzv-endpoint"));
  options.rendezvous.port = 29400;
  EXPECT_EQ(refusal(options), "");
}

bool refuses(const std::function<void()>& parse) {
  try {
    parse();
  } catch (const util::Error& error) {
    return error.kind() == ErrorKind::kUsage;
  }
  return false;
}

TEST(OptionText, CountsWorkersByNumberCoresOrGpus) {
  EXPECT_EQ(workers_from_text("3"), 3);
  EXPECT_GE(available_cores(), 1);
  EXPECT_EQ(workers_from_text("cpu"), available_cores());
  EXPECT_EQ(workers_from_text("auto"), gpu_count() ? gpu_count() : available_cores());
  EXPECT_EQ(refuses([] { workers_from_text("gpu"); }), gpu_count() == 0);
}

TEST(OptionText, RefusesOtherCountsOfWorkers) {
  for (const char* text : {"0", "-1", "", "2x", "many", "99999999999999999999", "1.5", " 2"}) {
    EXPECT_TRUE(refuses([&] { workers_from_text(text); })) << text;
  }
}

TEST(OptionText, ReadsNodesAsANumberOrARange) {
  EXPECT_EQ(nodes_from_text("1"), (NodeRange{1, 1}));
  EXPECT_EQ(nodes_from_text("2:4"), (NodeRange{2, 4}));
  for (const char* text : {"0", "", "2:1", "0:2", "1:", ":2", "1:2:3", "two"}) {
    EXPECT_TRUE(refuses([&] { nodes_from_text(text); })) << text;
  }
}

TEST(OptionText, ReadsStreamsForAllOrByLocalRank) {
  EXPECT_EQ(streams_from_text("--tee", "3").of(7), 3);
  const StreamChoice choice = streams_from_text("--tee", "0:1,2:3");
  EXPECT_EQ(choice.of(0), StreamChoice::kOut);
  EXPECT_EQ(choice.of(1), 0);
  EXPECT_EQ(choice.of(2), StreamChoice::kOut | StreamChoice::kErr);
  for (const char* text : {"", "4", "-1", "0:", "0:4", "a:1", "1,2"}) {
    EXPECT_TRUE(refuses([&] { streams_from_text("--tee", text); })) << text;
  }
}

TEST(OptionText, ReadsRanksAndSignals) {
  EXPECT_EQ(ranks_from_text("--local-ranks-filter", "0,2"), (std::set<int>{0, 2}));
  EXPECT_TRUE(ranks_from_text("--local-ranks-filter", "").empty());
  EXPECT_TRUE(refuses([] { ranks_from_text("--local-ranks-filter", "0,x"); }));
  EXPECT_EQ(signals_from_text("SIGTERM,USR1"), (std::vector<int>{SIGTERM, SIGUSR1}));
  for (const char* text : {"SIGNONE", "SIGKILL", "SIGSTOP", "15"}) {
    EXPECT_TRUE(refuses([&] { signals_from_text(text); })) << text;
  }
}

TEST(OptionText, ReadsEndpoints) {
  const auto read = [](const std::string& text) {
    RendezvousOptions options;
    read_endpoint(text, 29400, options);
    return std::pair(options.host, options.port);
  };
  EXPECT_EQ(read("host0"), std::pair(std::string("host0"), 29400));
  EXPECT_EQ(read("10.0.0.1:80"), std::pair(std::string("10.0.0.1"), 80));
  EXPECT_EQ(read("[::1]:80"), std::pair(std::string("::1"), 80));
  EXPECT_EQ(read("[::1]"), std::pair(std::string("::1"), 29400));
  for (const char* text : {":80", "host:x", "host:70000"}) EXPECT_TRUE(refuses([&] { read(text); })) << text;
}

TEST(OptionText, ReadsTheRendezvousConfiguration) {
  RendezvousOptions options;
  read_rendezvous_conf("join_timeout=60,last_call_timeout=0.5,is_host=true,token_file=/a/b", options);
  EXPECT_EQ(options.join_timeout_seconds, 60);
  EXPECT_EQ(options.last_call_timeout_seconds, 0.5);
  EXPECT_EQ(options.is_host, true);
  EXPECT_EQ(options.token_file, "/a/b");
  for (const char* text : {"join_timeout=soon", "is_host=maybe", "join_timeou=3", "join_timeout"}) {
    EXPECT_TRUE(refuses([&] { read_rendezvous_conf(text, options); })) << text;
  }
}

enum class Answer { kTaken, kIgnored, kRefused };

struct TorchrunOption {
  std::string name;
  std::string value;  ///< empty: a flag
  Answer answer = Answer::kTaken;
};

/// All options of torch.distributed.run.get_args_parser() in PyTorch 2.11.0.
const TorchrunOption kTorchrunOptions[] = {
    {"--nnodes", "1:1"},
    {"--nproc-per-node", "2"},
    {"--rdzv-backend", "static"},
    {"--rdzv-endpoint", "host0:29400"},
    {"--rdzv-id", "run7"},
    {"--rdzv-conf", "timeout=60"},
    {"--standalone", ""},
    {"--max-restarts", "3"},
    {"--monitor-interval", "0.1"},
    {"--start-method", "spawn", Answer::kIgnored},
    {"--event-log-handler", "null", Answer::kIgnored},
    {"--role", "trainer"},
    {"-m", "", Answer::kRefused},
    {"--module", "", Answer::kRefused},
    {"--no-python", ""},
    {"--run-path", "", Answer::kRefused},
    {"--log-dir", "logs"},
    {"-r", "3"},
    {"--redirects", "0:1,1:2"},
    {"-t", "3"},
    {"--tee", "3"},
    {"--local-ranks-filter", "0"},
    {"--duplicate-stdout-filters", "loss", Answer::kRefused},
    {"--duplicate-stderr-filters", "loss", Answer::kRefused},
    {"--node-rank", "0"},
    {"--master-addr", "127.0.0.1"},
    {"--master-port", "29500"},
    {"--local-addr", "127.0.0.1"},
    {"--logs-specs", "default", Answer::kRefused},
    {"--numa-binding", "node"},
    {"--signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"},
    {"--virtual-local-rank", "", Answer::kRefused},
};

/// What parse_command_line() says of these arguments: an error's text, or the warnings.
std::pair<std::string, std::string> answer_to(const std::vector<std::string>& options) {
  std::vector<const char*> argv = {"fsdp-launch"};
  for (const std::string& option : options) argv.push_back(option.c_str());
  argv.insert(argv.end(), {"prog", "--own"});
  std::string error, warnings;
  util::set_log_sink([&](util::LogLevel, std::string_view line) { warnings += line; });
  try {
    const auto parsed = parse_command_line(static_cast<int>(argv.size()), argv.data());
    EXPECT_EQ(parsed.value().program, (std::vector<std::string>{"prog", "--own"}));
    validate(*parsed);
  } catch (const util::Error& caught) {
    error = caught.what();
  }
  util::set_log_sink({});
  return {error, warnings};
}

TEST(TorchrunOptions, AreTakenOrIgnoredWithAWordOrRefusedWithTheReason) {
  for (const auto& [name, value, answer] : kTorchrunOptions) {
    std::string other = name;
    std::replace(other.begin() + 2, other.end(), '-', '_');
    for (const std::string& spelling : {name, other}) {
      SCOPED_TRACE(spelling);
      std::vector<std::string> options = {"--nproc-per-node", "2"};
      if (name == "--nproc-per-node") options.clear();
      options.push_back(spelling);
      if (!value.empty()) options.push_back(value);
      const auto [error, warnings] = answer_to(options);
      const std::string shown = name == "-m" ? "--module" : name;
      EXPECT_EQ(error.empty(), answer != Answer::kRefused) << error;
      EXPECT_EQ(warnings.empty(), answer != Answer::kIgnored) << warnings;
      if (answer == Answer::kRefused) {
        EXPECT_THAT(error, HasSubstr("expected no " + shown + ", an option of torchrun only: "));
      }
      if (answer == Answer::kIgnored) {
        EXPECT_THAT(warnings, HasSubstr(shown + ", an option of torchrun, is ignored: "));
      }
    }
  }
}

TEST(TorchrunOptions, AreAnsweredInTheEnvironmentToo) {
  ::setenv("PET_START_METHOD", "fork", 1);
  EXPECT_THAT(answer_to({}).second, HasSubstr("--start-method, an option of torchrun, is ignored"));
  ::unsetenv("PET_START_METHOD");
  ::setenv("PET_MODULE", "1", 1);
  EXPECT_THAT(answer_to({}).first, HasSubstr("write -- python3 -m MODULE"));
  ::setenv("PET_MODULE", "0", 1);
  EXPECT_EQ(answer_to({}), std::pair(std::string(), std::string()));
  ::unsetenv("PET_MODULE");
}

TEST(OptionText, RefusesUnknownNames) {
  EXPECT_TRUE(refuses([] { numa_binding_from_text("core"); }));
  EXPECT_TRUE(refuses([] { backend_from_text("etcd"); }));
}

}  // namespace
}  // namespace fsdp::launch
