#include "tools/launch/poller.h"

#include <sys/epoll.h>

#include <array>
#include <cerrno>

#include "base/util/error.h"

namespace fsdp::launch {

Poller::Poller() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (epoll_.is_open()) return;
  fail(ErrorKind::kUsage,
       "the system refuses to watch connections (epoll_create1): ", util::errno_text(errno));
}

void Poller::watch(int socket, int number, bool for_sending) {
  epoll_event event{};
  event.events = EPOLLIN;
  if (for_sending) event.events |= EPOLLOUT;
  event.data.fd = number;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket, &event) == 0) return;
  if (errno == EEXIST && ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, socket, &event) == 0) return;
  fail(ErrorKind::kUsage,
       "the system refuses to watch another connection (epoll_ctl): ", util::errno_text(errno));
}

void Poller::forget(int socket) { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket, nullptr); }

std::vector<int> Poller::ready() {
  std::array<epoll_event, 512> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  std::vector<int> numbers;
  for (int i = 0; i < count; ++i) numbers.push_back(events[static_cast<size_t>(i)].data.fd);
  return numbers;
}

}  // namespace fsdp::launch
