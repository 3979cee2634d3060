#pragma once

// Runs the kernels of lib/model/kernels/cuda on the CPU, without a GPU: a block's threads are fibers, which
// give way to each other where a GPU's threads wait for each other. It finds
//   - barriers and shuffles that not all threads reach, or that they reach at different places in the source,
//   - packs that are not aligned (require()),
//   - shared memory that is read before it is written: it begins as NaN,
// and, run again in another order of threads and blocks, results that depend on that order.

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <source_location>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "model/kernels/cuda/thread_model.cuh"

namespace fsdp::kernels::cuda {

/// In which order the threads of a block, and the blocks, get their turn.
enum class Schedule { kAscending, kDescending, kShuffled };

/// A stack, and where on it to go on.
class Continuation {
 public:
  /// On a stack of its own.
  void begin(char* stack, size_t bytes, void (*function)()) {
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack;
    context_.uc_stack.ss_size = bytes;
    makecontext(&context_, function, 0);
    is_new_ = true;
  }

  /// The caller goes on when another gives way to it.
  void give_way_to(Continuation& next) {
#ifdef __SANITIZE_ADDRESS__
    swapcontext(&context_, &next.context_);  // the sanitizer does not follow jumps between stacks
#else
    if (_setjmp(here_) != 0) return;  // swapcontext() would make a system call
    if (std::exchange(next.is_new_, false)) setcontext(&next.context_);
    _longjmp(next.here_, 1);
#endif
  }

 private:
  ucontext_t context_{};
  jmp_buf here_{};
  bool is_new_ = false;
};

/// The threads of one block.
class EmulatedBlock {
 public:
  struct Place {
    int64_t block = 0, block_y = 0, blocks = 1;
  };

  EmulatedBlock(int threads, Schedule schedule) : schedule_(schedule), random_(threads) {
    for (int i = 0; i < threads; ++i) fibers_.push_back(std::make_unique<Fiber>(*this, i));
    order_.resize(fibers_.size());
    std::iota(order_.begin(), order_.end(), 0);
    if (schedule_ == Schedule::kDescending) std::reverse(order_.begin(), order_.end());
  }

  /// Runs `body` in every thread of the block. Throws what a thread throws, and for threads that do not meet.
  void run(const Place& place, const std::function<void()>& body) {
    body_ = &body;
    for (auto& fiber : fibers_) fiber->begin(place);
    while (true) {
      if (schedule_ == Schedule::kShuffled) std::shuffle(order_.begin(), order_.end(), random_);
      for (int i : order_) {
        if (fibers_[static_cast<size_t>(i)]->state == State::kReady) resume(*fibers_[static_cast<size_t>(i)]);
      }
      if (std::all_of(fibers_.begin(), fibers_.end(), [](auto& f) { return f->state == State::kDone; }))
        return;
      let_go_on();
    }
  }

 private:
  enum class State { kReady, kAtBarrier, kInExchange, kDone };

  class Fiber final : public MachineThread {
   public:
    Fiber(EmulatedBlock& block, int number)
        : owner_(block), stack_(std::make_unique_for_overwrite<char[]>(kStackBytes)) {
      thread = number;
      place_.begin(stack_.get(), kStackBytes, &Fiber::enter);
    }

    void begin(const Place& place) {
      block = place.block;
      block_y = place.block_y;
      blocks = place.blocks;
      state = State::kReady;
    }

    /// Runs until the thread waits or is done.
    void resume() { owner_.scheduler_.give_way_to(place_); }

    void sync_block(const std::source_location& where) override { wait(State::kAtBarrier, where); }

    const uint64_t* exchange(uint64_t value, const std::source_location& where) override {
      given = value;
      wait(State::kInExchange, where);
      return owner_.exchanged_.data() + thread / kWarp * kWarp;
    }

    State state = State::kDone;
    std::source_location where;
    uint64_t given = 0;

   private:
    static constexpr size_t kStackBytes = 64 << 10;

    static void enter() {
      auto& self = static_cast<Fiber&>(*machine_thread);
      for (;;) {
        try {
          (*self.owner_.body_)();
        } catch (...) {
          self.owner_.failure_ = std::current_exception();
        }
        self.state = State::kDone;
        self.place_.give_way_to(self.owner_.scheduler_);
      }
    }

    void wait(State waiting, const std::source_location& place) {
      state = waiting;
      where = place;
      place_.give_way_to(owner_.scheduler_);
    }

    EmulatedBlock& owner_;
    std::unique_ptr<char[]> stack_;
    Continuation place_;
  };

  void resume(Fiber& fiber) {
    machine_thread = &fiber;
    fiber.resume();
    machine_thread = nullptr;
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

  static bool same_place(const std::source_location& a, const std::source_location& b) {
    return a.line() == b.line() && a.column() == b.column() && std::strcmp(a.file_name(), b.file_name()) == 0;
  }

  bool all_wait(size_t begin, size_t end, State state) const {
    return std::all_of(fibers_.begin() + static_cast<std::ptrdiff_t>(begin),
                       fibers_.begin() + static_cast<std::ptrdiff_t>(end), [&](const auto& fiber) {
                         return fiber->state == state && same_place(fiber->where, fibers_[begin]->where);
                       });
  }

  void let_go_on() {
    bool any = false;
    exchanged_.resize(fibers_.size());
    for (size_t warp = 0; warp < fibers_.size(); warp += kWarp) {
      if (!all_wait(warp, warp + kWarp, State::kInExchange)) continue;
      for (size_t i = warp; i < warp + kWarp; ++i) {
        exchanged_[i] = fibers_[i]->given;
        fibers_[i]->state = State::kReady;
      }
      any = true;
    }
    if (all_wait(0, fibers_.size(), State::kAtBarrier)) {
      for (auto& fiber : fibers_) fiber->state = State::kReady;
      any = true;
    }
    if (!any) throw std::logic_error("threads of a block wait for others that do not come: " + waiting());
  }

  std::string waiting() const {
    std::string text;
    for (const auto& fiber : fibers_) {
      const bool done = fiber->state == State::kDone;
      text += done ? "-" : std::to_string(fiber->where.line());
      text += fiber->state == State::kAtBarrier ? "b " : " ";
    }
    return text;
  }

  Schedule schedule_;
  std::mt19937 random_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<int> order_;
  std::vector<uint64_t> exchanged_;
  Continuation scheduler_;
  const std::function<void()>* body_ = nullptr;
  std::exception_ptr failure_;
};

/// Launches kernels (model/kernels/cuda/thread_model.cuh).
class EmulatedLaunch {
 public:
  explicit EmulatedLaunch(Schedule schedule = Schedule::kAscending) : schedule_(schedule) {}

  template <typename Kernel>
  void run(const Grid& grid, const typename Kernel::Arguments& arguments) const {
    static_assert(Kernel::kThreads % kWarp == 0 && Kernel::kThreads <= 1024);
    static_assert(sizeof(typename Kernel::Shared) <= 48 << 10, "more than a block has without asking");
    if (grid.x == 0 || grid.y == 0) return;
    if (grid.y > 65535 || grid.x > 2147483647) throw std::logic_error("a grid of too many blocks");
    std::vector<int64_t> order(static_cast<size_t>(grid.x * grid.y));
    std::iota(order.begin(), order.end(), 0);
    if (schedule_ == Schedule::kDescending) std::reverse(order.begin(), order.end());
    if (schedule_ == Schedule::kShuffled) std::shuffle(order.begin(), order.end(), std::mt19937(1));
    EmulatedBlock block(Kernel::kThreads, schedule_);
    auto shared = std::make_unique<typename Kernel::Shared>();
    for (int64_t i : order) {
      std::memset(static_cast<void*>(shared.get()), 0xff, sizeof *shared);
      block.run({.block = i % grid.x, .block_y = i / grid.x, .blocks = grid.x},
                [&] { Kernel::run(arguments, *shared); });
    }
  }

 private:
  Schedule schedule_;
};

}  // namespace fsdp::kernels::cuda
