#include "state/checkpoint/copy_beside.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <utility>

#include "base/tensor/parallel.h"
#include "base/util/past_cache.h"

namespace fsdp::checkpoint {
namespace {

/// Small enough that waiting for a piece that the thread has begun takes no time.
constexpr int64_t kPieceBytes = int64_t{256} << 10;

/// Lets the calling thread run only when nothing else needs its core. Where the system refuses, it competes.
void take_idle_time_only() {
  const sched_param none{};
  ::sched_setscheduler(0, SCHED_IDLE, &none);
}

}  // namespace

/// Copies within host memory, shared by the threads that make them.
class CopyBeside::Pieces {
 public:
  void add(const Copy& copy) {
    const auto bytes = static_cast<int64_t>(copy.from.nbytes());
    for (int64_t begin = 0; begin < bytes; begin += kPieceBytes) {
      pieces_.push_back({static_cast<const char*>(copy.from.const_data_ptr()) + begin,
                         static_cast<char*>(copy.to.data_ptr()) + begin,
                         std::min(kPieceBytes, bytes - begin)});
    }
    bytes_ += bytes;
    tensors_.push_back(copy);
  }

  bool is_empty() const { return pieces_.empty(); }

  /// Makes the copies that no other thread has taken.
  void make_what_is_left() {
    const bool past_cache = util::is_written_past_cache(bytes_);
    for (size_t i = next_++; i < pieces_.size(); i = next_++) {
      const Piece& piece = pieces_[i];
      if (past_cache) {
        util::write_past_cache(piece.to, piece.from, piece.bytes);
        util::end_writes_past_cache();
      } else {
        std::memcpy(piece.to, piece.from, static_cast<size_t>(piece.bytes));
      }
      if (++made_ == pieces_.size()) made_.notify_all();
    }
  }

  /// Waits for the copies that other threads have taken.
  void wait() const {
    for (size_t made = made_; made < pieces_.size(); made = made_) made_.wait(made);
  }

  /// Leaves the copies that no thread has taken.
  void give_up() { next_ = pieces_.size(); }

  bool is_done() const { return made_ == pieces_.size(); }

 private:
  struct Piece {
    const char* from;
    char* to;
    int64_t bytes;
  };
  std::vector<Piece> pieces_;
  std::vector<Copy> tensors_;  ///< keep the memory, also if the thread outlives the caller's interest in it
  int64_t bytes_ = 0;
  std::atomic<size_t> next_ = 0, made_ = 0;
};

CopyBeside::CopyBeside() : thread_({.name = "copy of state"}) {}

CopyBeside::~CopyBeside() {
  if (!pieces_) return;
  pieces_->give_up();
  try {
    from_device_.synchronize();
  } catch (const std::exception&) {
    // The device has failed, which the collectives or steps after the copies report.
  }
}

void CopyBeside::begin(const std::vector<Copy>& copies, std::function<void()> before) {
  finish();
  std::vector<Copy> of_device;
  pieces_ = std::make_shared<Pieces>();
  for (const Copy& copy : copies) copy.from.is_cpu() ? pieces_->add(copy) : of_device.push_back(copy);
  if (!of_device.empty()) {
    if (!on_device_) on_device_.emplace(util::StreamOptions{.device = of_device.front().from.device()});
    from_device_ = on_device_->run([&of_device] {
      for (const Copy& copy : of_device) at::Tensor(copy.to).copy_(copy.from, /*non_blocking=*/true);
    });
  }
  if (pieces_->is_empty()) return;
  thread_.run([pieces = pieces_, before = std::move(before)] {
    if (before) before();
    take_idle_time_only();
    pieces->make_what_is_left();
  });
}

void CopyBeside::finish() {
  if (!pieces_) return;
  util::parallel_for(0, at::get_num_threads(), 1, [this](int64_t, int64_t) { pieces_->make_what_is_left(); });
  pieces_->wait();
  from_device_.synchronize();
  pieces_.reset();
}

bool CopyBeside::is_done() const { return !pieces_ || pieces_->is_done(); }

}  // namespace fsdp::checkpoint
