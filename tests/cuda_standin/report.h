#pragma once

// The report of a process: what it called, how often, and what CUDA forbids of that.

#include <atomic>
#include <mutex>
#include <string>

namespace standin {

/// Guards all state of the stand-in but the queues of late streams, which have locks of their own.
std::recursive_mutex& mutex();
using Lock = std::lock_guard<std::recursive_mutex>;

/// The count of that name. Lives forever.
std::atomic<long>& count_of(const std::string& name);

/// Goes to stderr with a stack, once for each text, and to the report at once, so that no end of the
/// process loses it.
void violation(const std::string& what);

long total_violations();

/// Adds the counts to the report, unless the process has not used a GPU.
void write_report();

}  // namespace standin

#define STANDIN_COUNT(name)                                             \
  do {                                                                  \
    static std::atomic<long>& standin_count_ = standin::count_of(name); \
    standin_count_.fetch_add(1, std::memory_order_relaxed);             \
  } while (false)
