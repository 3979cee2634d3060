#include "comm/run_store.h"

#include <gtest/gtest.h>

#include "comm/listener_wait.h"
#include "support/free_port.h"
#include "util/error.h"

namespace fsdp::comm {
namespace {

LaunchEnvironment alone_at(const std::string& host) {
  LaunchEnvironment environment;
  environment.master_addr = host;
  environment.master_port = testing::free_port();
  return environment;
}

RunStore join(const LaunchEnvironment& environment) {
  return join_run_store(environment, std::chrono::seconds(20));
}

bool listens(const std::string& host, int port) {
  return wait_for_listener(host, port, std::chrono::steady_clock::time_point::min());
}

TEST(RunStore, ListensOnlyAtALoopbackAddressThatItIsGiven) {
  const LaunchEnvironment environment = alone_at("127.0.0.1");
  RunStore store = join(environment);
  EXPECT_TRUE(listens("127.0.0.1", environment.master_port));
  EXPECT_FALSE(listens("127.0.0.2", environment.master_port));
  EXPECT_EQ(exchange_texts(store, environment, "test", "text"), std::vector<std::string>{"text"});
}

TEST(RunStore, ListensAtAllAddressesOfAHostThatItIsGivenByName) {
  const LaunchEnvironment environment = alone_at("localhost");
  const RunStore store = join(environment);
  EXPECT_TRUE(listens("127.0.0.1", environment.master_port));
  EXPECT_TRUE(listens("127.0.0.2", environment.master_port));
}

TEST(RunStore, ComesAgainAtThePortOfTheLast) {
  const LaunchEnvironment environment = alone_at("127.0.0.1");
  for (int i = 0; i < 3; ++i) EXPECT_NO_THROW(join(environment));
}

TEST(FirstLine, IsWithoutAddressesThatWereNeverSet) {
  EXPECT_EQ(first_line("Connection closed by peer [249.85.0.0]:0\nframe #0"), "Connection closed by peer");
  EXPECT_EQ(first_line("no way to 249.85.0.0, and no other"), "no way to, and no other");
  for (const char* kept : {"peer [10.0.0.1]:4711", "listens at 0.0.0.0:80"})
    EXPECT_EQ(first_line(kept), kept);
}

TEST(RunStore, NamesAPortThatIsInUse) {
  const LaunchEnvironment environment = alone_at("127.0.0.1");
  const RunStore first = join(environment);
  try {
    join(environment);
    ADD_FAILURE() << "two at one port";
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), util::ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find(std::to_string(environment.master_port)), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace fsdp::comm
