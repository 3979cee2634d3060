#include "tools/launch/poller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

namespace fsdp::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Two sockets that are connected.
struct SocketPair {
  Descriptor a, b;

  SocketPair() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    a = Descriptor(ends[0]);
    b = Descriptor(ends[1]);
  }
};

bool is_readable(const Poller& poller) {
  pollfd entry{.fd = poller.fd(), .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, 0) == 1;
}

TEST(Poller, TellsWhichSocketsHaveData) {
  Poller poller;
  SocketPair first, second;
  poller.watch(first.a.get(), 1);
  poller.watch(second.a.get(), 2);
  EXPECT_THAT(poller.ready(), IsEmpty());
  EXPECT_FALSE(is_readable(poller));
  ASSERT_EQ(::send(second.b.get(), "x", 1, 0), 1);
  EXPECT_TRUE(is_readable(poller)) << "for those who wait with poll()";
  EXPECT_THAT(poller.ready(), ElementsAre(2));
  EXPECT_THAT(poller.ready(), ElementsAre(2)) << "until it is read";
  char data = 0;
  ASSERT_EQ(::recv(second.a.get(), &data, 1, 0), 1);
  EXPECT_THAT(poller.ready(), IsEmpty());
  first.b.close();
  EXPECT_THAT(poller.ready(), ElementsAre(1)) << "its end is an event, too";
}

TEST(Poller, TellsOfRoomToSendOnlyWhoAsks) {
  Poller poller;
  SocketPair pair;
  poller.watch(pair.a.get(), 7, /*for_sending=*/true);
  EXPECT_THAT(poller.ready(), ElementsAre(7));
  poller.watch(pair.a.get(), 7);
  EXPECT_THAT(poller.ready(), IsEmpty());
}

TEST(Poller, ForgetsWhatIsClosedOrNotToBeWatchedAnyMore) {
  Poller poller;
  SocketPair closed, forgotten;
  poller.watch(closed.a.get(), 1);
  poller.watch(forgotten.a.get(), 2);
  for (const SocketPair* pair : {&closed, &forgotten}) ASSERT_EQ(::send(pair->b.get(), "x", 1, 0), 1);
  closed.a.close();
  poller.forget(forgotten.a.get());
  EXPECT_THAT(poller.ready(), IsEmpty());
  poller.watch(forgotten.a.get(), 3);
  EXPECT_THAT(poller.ready(), ElementsAre(3));
}

}  // namespace
}  // namespace fsdp::launch
