#include "comm/gloo/gloo_exchange.h"

#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>
#include <vector>

#include "base/util/error.h"

namespace fsdp::comm {
namespace {

/// Turns exceptions of `body` into util::Error.
template <typename Body>
auto translated(const Body& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    const std::string text = first_line(error.what());
    const auto kind = says_timeout(text) ? ErrorKind::kTimeout : ErrorKind::kPeerLost;
    throw util::Error(kind, text);
  }
}

}  // namespace

/// Ends the pending transfer once the ranks' epoch is broken off: gloo itself waits until the time-out,
/// because a host that the network has lost closes no connection.
class GlooExchange::Breaker {
 public:
  explicit Breaker(std::function<bool()> is_broken_off)
      : thread_([this, is_broken_off = std::move(is_broken_off)] { watch(is_broken_off); }) {}
  ~Breaker() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void wait(const Transfer& transfer) {
    bool done = set_waiting(transfer);
    try {
      done = done && transfer->wait();
    } catch (...) {
      set_waiting(nullptr);
      throw;
    }
    set_waiting(nullptr);
    if (!done) throw std::runtime_error(kBrokenOff);
  }

 private:
  bool set_waiting(const Transfer& transfer) {
    const std::lock_guard lock(mutex_);
    waiting_ = transfer;
    return !broken_;
  }

  void watch(const std::function<bool()>& is_broken_off) {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kLookForBreak, [this] { return over_; })) {
      lock.unlock();
      const bool broken = is_broken_off();
      lock.lock();
      if (!broken) continue;
      broken_ = true;
      if (waiting_) waiting_->abort();
      return;
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  Transfer waiting_;
  bool over_ = false, broken_ = false;
  std::thread thread_;  ///< last, because it uses the others
};

GlooExchange::GlooExchange(const GlooPlace& place, const std::string& prefix, int rank, int size)
    : GlooExchange(translated([&] { return connect_gloo(place, prefix, rank, size); }), place.is_broken_off) {
}

GlooExchange::GlooExchange(c10::intrusive_ptr<c10d::ProcessGroupGloo> process_group,
                           const std::function<bool()>& is_broken_off)
    : process_group_(std::move(process_group)) {
  if (is_broken_off) breaker_ = std::make_unique<Breaker>(is_broken_off);
}

GlooExchange::~GlooExchange() = default;

GlooExchange::Transfer GlooExchange::send(int to, int tag, const at::Tensor& tensor) {
  std::vector<at::Tensor> tensors{tensor};
  return translated([&] { return process_group_->send(tensors, to, tag); });
}

GlooExchange::Transfer GlooExchange::receive(int from, int tag, const at::Tensor& tensor) {
  std::vector<at::Tensor> tensors{tensor};
  return translated([&] { return process_group_->recv(tensors, from, tag); });
}

void GlooExchange::wait(const Transfer& transfer) {
  translated([&] { breaker_ ? breaker_->wait(transfer) : static_cast<void>(transfer->wait()); });
}

// The destructor of the process group does not block: only collectives of c10d have threads.
void GlooExchange::close() { process_group_.reset(); }

}  // namespace fsdp::comm
