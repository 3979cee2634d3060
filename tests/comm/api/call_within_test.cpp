#include "comm/api/call_within.h"

#include <gtest/gtest.h>

#include <chrono>
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

}  // namespace
}  // namespace fsdp::comm
