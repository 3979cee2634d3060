#include "tools/launch/worker_channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "base/util/clock.h"
#include "base/util/error.h"
#include "tools/launch/message.h"
#include "tools/launch/worker_environment.h"

namespace fsdp::launch {

std::unique_ptr<WorkerChannel> WorkerChannel::from_environment() {
  const char* text = std::getenv(kChannelVariable);
  if (!text) return nullptr;
  int fd = -1;
  const char* end = text + std::strlen(text);
  const auto [parsed, error] = std::from_chars(text, end, fd);
  struct stat info;
  if (error != std::errc() || parsed != end || ::fstat(fd, &info) != 0 || !S_ISSOCK(info.st_mode)) {
    fail(ErrorKind::kUsage, kChannelVariable, " must be the number of an open socket, but is \"", text,
         "\"; it is set by fsdp-launch --replica-size for the program that it starts, which must not close "
         "inherited descriptors");
  }
  return std::make_unique<WorkerChannel>(Descriptor(fd));
}

WorkerChannel::WorkerChannel(Descriptor socket)
    : socket_([&] {
        ::fcntl(socket.get(), F_SETFD, FD_CLOEXEC);
        ::fcntl(socket.get(), F_SETFL, ::fcntl(socket.get(), F_GETFL) | O_NONBLOCK);
        return std::move(socket);
      }()) {
  constexpr size_t kLongestLineBytes = 16 << 20;
  socket_.set_longest_line(kLongestLineBytes);
}

void WorkerChannel::read() {
  socket_.exchange();
  while (const auto line = socket_.take_line()) {
    const std::optional<Message> message = parse_message(*line);
    if (!message) continue;
    try {
      const std::string type = message->at("type");
      if (type == "epoch") next_ = epoch_from(*message);
      if (type == "pause") paused_epoch_ = message->at("epoch");
      if (type == "break_off") broken_epoch_ = message->at("epoch");
    } catch (const Message::exception&) {
      fail(ErrorKind::kUnexpected, "the launcher sent \"", *line,
           "\", which this version does not understand; use programs of the same version");
    }
  }
}

std::optional<Epoch> WorkerChannel::ready(const Wait& wait) { return await({}, wait); }

std::optional<Epoch> WorkerChannel::stopped(WorkerReport report, const Wait& wait) {
  report.kind = WorkerReport::ReportKind::kStopped;
  return await(report, wait);
}

std::optional<Epoch> WorkerChannel::await(const WorkerReport& report, const Wait& wait) {
  const auto start = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  WorkerReport own = report;
  own.epoch = epoch_.number;
  socket_.send(line_of(to_message(own)));
  while (true) {
    read();
    if (next_.number > epoch_.number) return epoch_ = next_;
    if (!socket_.is_open()) {
      fail(ErrorKind::kPeerLost, "the launcher closed the channel to this process: ", socket_.failure());
    }
    const double left = wait.timeout_seconds - util::seconds_since(start);
    if (left <= 0) {
      fail(ErrorKind::kTimeout, "waited ", wait.timeout_seconds,
           " seconds for the launcher to say which replicas go on; is it stopped?");
    }
    std::vector<pollfd> entries;
    socket_.add_poll_entry(entries);
    lock.unlock();
    if (wait.give_up && wait.give_up()) return std::nullopt;
    constexpr double kLookAgainSeconds = 0.1;
    ::poll(entries.data(), entries.size(), static_cast<int>(1e3 * std::min(left, kLookAgainSeconds)) + 1);
    lock.lock();
  }
}

bool WorkerChannel::change_is_due() {
  const std::lock_guard lock(mutex_);
  read();
  return epoch_.number > 0 && std::max(paused_epoch_, broken_epoch_) >= epoch_.number;
}

bool WorkerChannel::is_broken_off() {
  const std::lock_guard lock(mutex_);
  read();
  return epoch_.number > 0 && broken_epoch_ >= epoch_.number;
}

}  // namespace fsdp::launch
