#include "base/tensor/stream.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <future>
#include <thread>
#include <vector>

#include "base/util/error.h"

namespace fsdp::util {
namespace {

std::string message_of(const Event& event) {
  try {
    event.wait();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(Stream, RunsTasksInTheOrderOfIssue) {
  Stream stream;
  std::vector<int> order;
  Event last;
  for (int i = 0; i < 1000; ++i) last = stream.run([&order, i] { order.push_back(i); });
  last.wait();
  ASSERT_EQ(order.size(), 1000u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST(Stream, RunsBesideItsCaller) {
  Stream stream;
  std::promise<int> computed;
  int seen = 0;
  // Were the task run at the call, it would wait for ever.
  Event event = stream.run([&] { seen = computed.get_future().get(); });
  Event behind = stream.run([] {});
  EXPECT_FALSE(event.reached());
  EXPECT_FALSE(behind.reached());
  computed.set_value(7);
  behind.wait();
  EXPECT_TRUE(event.reached());
  EXPECT_EQ(seen, 7);
}

TEST(Stream, ReleasesWhatATaskCapturedBeforeItsEventIsReached) {
  Stream stream;
  auto captured = std::make_shared<int>(1);
  std::weak_ptr<int> watch = captured;
  Event event = stream.run([captured = std::move(captured)] {});
  event.wait();
  EXPECT_TRUE(watch.expired());
}

TEST(Stream, IsBrokenByATaskThatThrows) {
  Stream stream;
  bool ran = false;
  Event before = stream.run([] {});
  Event failed = stream.run([] { fail(ErrorKind::kTimeout, "no answer"); });
  Event after = stream.run([&] { ran = true; });
  before.wait();
  EXPECT_EQ(message_of(failed), "no answer");
  EXPECT_EQ(message_of(failed), "no answer") << "wait() may be repeated";
  EXPECT_EQ(message_of(after), "no answer");
  EXPECT_TRUE(after.reached());
  EXPECT_EQ(message_of(stream.run([&] { ran = true; })), "no answer");
  EXPECT_FALSE(ran);
}

TEST(Stream, DropsTheTasksThatHaveNotBegunWhenItIsDestroyed) {
  std::promise<void> begun, end;
  bool finished = false;
  auto stream = std::make_unique<Stream>(StreamOptions{.patience = std::chrono::minutes(5)});
  Event running = stream->run([&] {
    begun.set_value();
    end.get_future().get();
    finished = true;
  });
  Event pending = stream->run([] { FAIL(); });
  begun.get_future().get();
  std::thread destroyer([&] { stream.reset(); });
  EXPECT_EQ(message_of(pending), "the stream was destroyed before this task of it began");
  EXPECT_FALSE(running.reached());
  end.set_value();
  destroyer.join();
  EXPECT_TRUE(finished) << "the running task is awaited";
  running.wait();
}

TEST(Stream, LeavesATaskThatDoesNotEndBehindAndKeepsWhatItUses) {
  auto begun = std::make_shared<std::promise<void>>(), end = std::make_shared<std::promise<void>>();
  auto stream = std::make_unique<Stream>(StreamOptions{.patience = std::chrono::milliseconds(20)});
  Event stuck = stream->run([begun, end] {
    begun->set_value();
    end->get_future().get();
  });
  Event pending = stream->run([] {});
  begun->get_future().get();
  stream.reset();
  EXPECT_FALSE(stuck.reached());
  EXPECT_EQ(message_of(pending), "the stream was destroyed before this task of it began");
  end->set_value();
  stuck.wait();
}

TEST(Stream, MayBeDestroyedByItsOwnTask) {
  auto stream = std::make_shared<Stream>();
  std::promise<void> go;
  Event event = stream->run([stream, &go] { go.get_future().get(); });
  stream.reset();
  go.set_value();  // the task's end releases the last owner
  event.wait();
}

TEST(Stream, RunsWithoutAutogradOnItsNamedThreadAlone) {
  Stream stream({.name = "a name of more than 15 characters"});
  stream
      .run([] {
        EXPECT_FALSE(at::GradMode::is_enabled());
        char name[16];
        pthread_getname_np(pthread_self(), name, sizeof(name));
        EXPECT_STREQ(name, "a name of more ");
      })
      .wait();
  EXPECT_TRUE(at::GradMode::is_enabled());
}

TEST(Event, IsReachedWhenDefaultMade) {
  Event event;
  EXPECT_TRUE(event.reached());
  event.wait();
}

// A device without hardware that writes down what is asked of it.
std::vector<std::string> device_log;
c10::StreamId current_stream = 0;
int events_made = 0, events_destroyed = 0;

struct FakeDeviceGuard final : public c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
  static std::string text(const c10::Stream& stream) { return std::to_string(stream.id()); }

  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override { return device; }
  c10::Device getDevice() const override { return {kType, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, current_stream);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, 5);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return c10::Stream(c10::Stream::UNSAFE, stream.device(), std::exchange(current_stream, stream.id()));
  }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    if (*event == nullptr) {
      *event = &device_log;
      ++events_made;
    }
    device_log.push_back("record on " + text(stream));
  }
  void block(void*, const c10::Stream& stream) const override {
    device_log.push_back(text(stream) + " waits");
  }
  bool queryEvent(void*) const override { return false; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override { ++events_destroyed; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, FakeDeviceGuard)

TEST(Stream, OfADeviceOrdersItsWorkWithTheCallersStreamByEvents) {
  device_log.clear();
  Stream stream({.device = c10::DeviceType::PrivateUse1});
  Event event = stream.run([] { device_log.push_back("task on " + std::to_string(current_stream)); });
  EXPECT_EQ(current_stream, 0);
  EXPECT_EQ(device_log, (std::vector<std::string>{"record on 0", "5 waits", "task on 5", "record on 5"}));
  EXPECT_FALSE(event.reached());
  device_log.clear();
  event.wait();
  EXPECT_EQ(device_log, std::vector<std::string>{"0 waits"});

  Event failed = stream.run([] { fail(ErrorKind::kPeerLost, "gone"); });
  EXPECT_EQ(current_stream, 0);
  EXPECT_EQ(message_of(failed), "gone");
  EXPECT_EQ(message_of(stream.run([] { FAIL(); })), "gone");
}

TEST(Stream, OfADeviceRecordsTheSameEventsAgain) {
  events_made = events_destroyed = 0;
  Event left;
  {
    Stream stream({.device = c10::DeviceType::PrivateUse1});
    for (int step = 0; step < 3; ++step) {
      const Event first = stream.run([] {}), second = stream.run_apart([] {});
      first.wait();
      second.wait();
    }
    left = stream.run([] {});
    // As many as there were ends of tasks at a time.
    EXPECT_EQ(events_made, 2);
    EXPECT_EQ(events_destroyed, 0);
  }
  left = Event();
  EXPECT_EQ(events_destroyed, events_made);
}

}  // namespace
}  // namespace fsdp::util
