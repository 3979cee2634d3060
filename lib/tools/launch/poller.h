#pragma once

// Finds the ready sockets among many (epoll). The cost grows with the ready sockets only.

#include <vector>

#include "tools/launch/descriptor.h"

namespace fsdp::launch {

class Poller {
 public:
  /// Throws Error(kUsage) if the system refuses an epoll descriptor.
  Poller();

  /// A descriptor that is readable while some socket is ready, so that poll() can wait for all sockets at
  /// once.
  int fd() const { return epoll_.get(); }

  /// Watches a socket for data, its end and, if `for_sending`, for room to send. Called again, it changes
  /// `for_sending`. ready() returns `number` for the socket. Closing the socket ends the watch.
  void watch(int socket, int number, bool for_sending = false);
  void forget(int socket);

  /// The numbers of ready sockets: at most some hundreds, the rest in later calls. The socket of a number may
  /// have been closed a moment ago.
  std::vector<int> ready();

 private:
  Descriptor epoll_;
};

}  // namespace fsdp::launch
