#pragma once

// Which of many sockets are ready, at a cost that grows with those that are, not with all (epoll).

#include <vector>

#include "tools/launch/descriptor.h"

namespace fsdp::launch {

class Poller {
 public:
  /// Throws Error(kUsage) if the system refuses one.
  Poller();

  /// Readable while some socket is ready, so that poll() can wait for all of them at once.
  int fd() const { return epoll_.get(); }

  /// Watches the socket for data, its end and, if `for_sending`, for room to send, or changes what it is watched for.
  /// ready() gives it `number`. Closing the socket ends that too.
  void watch(int socket, int number, bool for_sending = false);
  void forget(int socket);

  /// The numbers of sockets that are ready: hundreds at most, the others at the next calls. A number may be that of a
  /// socket which was closed a moment ago.
  std::vector<int> ready();

 private:
  Descriptor epoll_;
};

}  // namespace fsdp::launch
