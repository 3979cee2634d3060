#include "base/util/stop_signal.h"

#include <signal.h>
#include <time.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "base/util/error.h"

namespace fsdp::util {
namespace {

constexpr std::array kSignals = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};

std::atomic<int> first_signal = 0;
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");
/// Time of the first signal on CLOCK_MONOTONIC; 0: no signal yet.
std::atomic<int64_t> first_nanoseconds = 0;
static_assert(std::atomic<int64_t>::is_always_lock_free, "used in a signal handler");
std::atomic<bool> repeated_ends = true;
static_assert(std::atomic<bool>::is_always_lock_free, "used in a signal handler");
std::atomic<bool> alive = false, early = false;
std::array<struct sigaction, kSignals.size()> previous;

int64_t monotonic_nanoseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);  // may be called in a signal handler
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void remember(int signal) {
  const int64_t now = monotonic_nanoseconds();
  int64_t first = 0;
  if (first_nanoseconds.compare_exchange_strong(first, now)) {
    first_signal = signal;
    return;
  }
  if (now - first < std::chrono::nanoseconds(kOneRequest).count()) return;
  if ((signal != SIGTERM && signal != SIGINT) || !repeated_ends) return;
  struct sigaction fallback {};
  fallback.sa_handler = SIG_DFL;
  sigaction(signal, &fallback, nullptr);
  raise(signal);  // takes effect when the handler returns
}

void forget() {
  first_signal = 0;
  first_nanoseconds = 0;
}

void handle_signals() {
  struct sigaction action {};
  action.sa_handler = remember;
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], nullptr, &previous[i]);
    const bool is_nohup = kSignals[i] == SIGHUP && previous[i].sa_handler == SIG_IGN;
    if (!is_nohup) sigaction(kSignals[i], &action, nullptr);
  }
}

void restore_handlers() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &previous[i], nullptr);
}

}  // namespace

StopSignal::StopSignal(Repeated repeated) {
  FSDP_CHECK(!alive.exchange(true), "a StopSignal lives already");
  repeated_ends = repeated == Repeated::kEndsTheProcess;
  if (early.exchange(false)) return;
  forget();
  handle_signals();
}

StopSignal::~StopSignal() {
  restore_handlers();
  alive = false;
}

void StopSignal::begin_early() {
  if (alive || early.exchange(true)) return;
  forget();
  repeated_ends = false;
  handle_signals();
}

void StopSignal::end_early() {
  if (!early.exchange(false)) return;
  restore_handlers();
  const int signal = first_signal;
  forget();
  if (signal != 0) raise(signal);
}

std::optional<int> StopSignal::received() {
  const int signal = first_signal;
  return signal == 0 ? std::nullopt : std::optional(signal);
}

const char* stop_signal_name(int signal) {
  return signal == SIGTERM   ? "SIGTERM"
         : signal == SIGINT  ? "SIGINT"
         : signal == SIGHUP  ? "SIGHUP"
         : signal == SIGUSR1 ? "SIGUSR1"
         : signal == SIGUSR2 ? "SIGUSR2"
                             : "a signal";
}

}  // namespace fsdp::util
