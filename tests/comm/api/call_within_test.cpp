#include "comm/api/call_within.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>

namespace fsdp::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(CallWithin, HasLetGoOfTheBodyWhenItReturns) {
  for (int i = 0; i < 100; ++i) {
    const auto shared = std::make_shared<int>(i);
    EXPECT_EQ(call_within(seconds(60), [shared] { return *shared; }), i);
    ASSERT_EQ(shared.use_count(), 1);
    const auto fails = [shared]() -> int { throw std::runtime_error("no"); };
    EXPECT_THROW(call_within(seconds(60), fails), std::runtime_error);
    ASSERT_EQ(shared.use_count(), 2);  // `fails`
  }
}

TEST(CallWithin, AbandonsABodyThatIsLateAndRunsTheNextInAnotherThread) {
  auto release = std::make_shared<std::promise<void>>();
  const auto waits = [released = release->get_future().share()] {
    released.wait();
    return std::this_thread::get_id();
  };
  EXPECT_EQ(call_within(milliseconds(20), waits), std::nullopt);
  const auto id = [] { return std::this_thread::get_id(); };
  const auto next = call_within(seconds(60), id);
  ASSERT_TRUE(next.has_value());
  EXPECT_NE(*next, std::this_thread::get_id());
  EXPECT_EQ(call_within(seconds(60), id), next) << "the thread stays";
  release->set_value();
}

TEST(CallWithin, IsPartOfTheBodyThatCallsIt) {
  const auto id = [] { return std::this_thread::get_id(); };
  const auto outer = [id] { return call_within(milliseconds(0), id) == id(); };
  EXPECT_EQ(call_within(seconds(60), outer), true);
}

/// fork() copies the caller's state, but not the thread that has served the caller.
TEST(CallWithin, ServesAProcessThatWasMadeByForkRightAfterACall) {
  const auto answer = [] { return 42; };
  ASSERT_EQ(call_within(seconds(60), answer), 42);
  const pid_t child = ::fork();
  if (child == 0) std::exit(call_within(seconds(10), answer) == 42 ? 0 : 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(call_within(seconds(60), answer), 42) << "the parent keeps its thread";
}

}  // namespace
}  // namespace fsdp::comm
