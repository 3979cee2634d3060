#include "util/stop_signal.h"

#include <signal.h>

#include <array>
#include <atomic>

#include "util/error.h"

namespace fsdp::util {
namespace {

constexpr std::array kSignals = {SIGTERM, SIGINT, SIGUSR1};

std::atomic<int> first_signal = 0;
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");
std::atomic<bool> repeated_ends = true;
static_assert(std::atomic<bool>::is_always_lock_free, "used in a signal handler");
std::atomic<bool> alive = false, early = false;
std::array<struct sigaction, kSignals.size()> previous;

void remember(int signal) {
  int none = 0;
  if (first_signal.compare_exchange_strong(none, signal) || signal == SIGUSR1 || !repeated_ends) return;
  struct sigaction fallback {};
  fallback.sa_handler = SIG_DFL;
  sigaction(signal, &fallback, nullptr);
  raise(signal);  // takes effect when the handler returns
}

void handle_signals() {
  struct sigaction action {};
  action.sa_handler = remember;
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &previous[i]);
}

void restore_handlers() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &previous[i], nullptr);
}

}  // namespace

StopSignal::StopSignal(Repeated repeated) {
  FSDP_CHECK(!alive.exchange(true), "a StopSignal lives already");
  repeated_ends = repeated == Repeated::kEndsTheProcess;
  if (early.exchange(false)) return;
  first_signal = 0;
  handle_signals();
}

StopSignal::~StopSignal() {
  restore_handlers();
  alive = false;
}

void StopSignal::begin_early() {
  if (alive || early.exchange(true)) return;
  first_signal = 0;
  repeated_ends = false;
  handle_signals();
}

void StopSignal::end_early() {
  if (!early.exchange(false)) return;
  restore_handlers();
  if (const int signal = first_signal.exchange(0)) raise(signal);
}

std::optional<int> StopSignal::received() {
  const int signal = first_signal;
  return signal == 0 ? std::nullopt : std::optional(signal);
}

const char* stop_signal_name(int signal) {
  return signal == SIGTERM   ? "SIGTERM"
         : signal == SIGINT  ? "SIGINT"
         : signal == SIGUSR1 ? "SIGUSR1"
                             : "a signal";
}

}  // namespace fsdp::util
