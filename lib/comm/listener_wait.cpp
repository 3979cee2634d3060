#include "comm/listener_wait.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

namespace fsdp::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{2}, kLongestPause{100};
constexpr milliseconds kLongestAnswer{1000};  ///< of a host that is there

enum class Answer { kListens, kRefuses, kUnclear };

/// A socket connected to itself: where nobody listens at a port that the system also gives to those who
/// connect, it may give them that very port.
bool is_of_itself(int socket) {
  sockaddr_storage own{}, other{};
  socklen_t own_size = sizeof(own), other_size = sizeof(other);
  return ::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &own_size) == 0 &&
         ::getpeername(socket, reinterpret_cast<sockaddr*>(&other), &other_size) == 0 &&
         own_size == other_size && std::memcmp(&own, &other, own_size) == 0;
}

Answer answer_of(int error) {
  if (error == 0) return Answer::kListens;
  return error == ECONNREFUSED || error == ECONNRESET ? Answer::kRefuses : Answer::kUnclear;
}

Answer ask(int socket, const addrinfo& address) {
  if (::connect(socket, address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return answer_of(errno);
    pollfd entry{.fd = socket, .events = POLLOUT, .revents = 0};
    if (::poll(&entry, 1, static_cast<int>(kLongestAnswer.count())) != 1) return Answer::kUnclear;
    int error = 0;
    socklen_t size = sizeof(error);
    if (::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return Answer::kUnclear;
    if (error != 0) return answer_of(error);
  }
  return is_of_itself(socket) ? Answer::kRefuses : Answer::kListens;
}

Answer ask(const addrinfo& address) {
  const int socket = ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket < 0) return Answer::kUnclear;
  const Answer answer = ask(socket, address);
  // In good order: c10d's store warns of a connection that was reset before it looked at who it is.
  ::close(socket);
  return answer;
}

/// Of all addresses of a host: it refuses where one does and none listens.
Answer ask(const addrinfo* addresses) {
  Answer best = Answer::kUnclear;
  for (const addrinfo* address = addresses; address != nullptr; address = address->ai_next) {
    const Answer answer = ask(*address);
    if (answer == Answer::kListens) return answer;
    if (answer == Answer::kRefuses) best = answer;
  }
  return best;
}

}  // namespace

bool wait_for_listener(const std::string& host, int port, Clock::time_point deadline) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return true;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, ::freeaddrinfo);
  for (milliseconds pause = kFirstPause; ask(addresses.get()) == Answer::kRefuses;) {
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 3 / 2 + milliseconds{1}, kLongestPause);
  }
  return true;
}

}  // namespace fsdp::comm
