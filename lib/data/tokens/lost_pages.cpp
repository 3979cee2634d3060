#include "data/tokens/lost_pages.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/util/error.h"
#include "base/util/text.h"

namespace fsdp::data {

/// An element of a list that the handler may read at any moment. Elements are reused, never removed.
struct MappedRange::RegisteredRange {
  std::atomic<uintptr_t> begin = 0;  ///< 0: unused
  uintptr_t end = 0;
  std::string line;
  RegisteredRange* next = nullptr;
};

namespace {

using RegisteredRange = MappedRange::RegisteredRange;

std::atomic<RegisteredRange*> first_entry = nullptr;
std::mutex entries_mutex;
std::vector<RegisteredRange*>& unused_entries() {
  static auto* entries =
      new std::vector<RegisteredRange*>;  // never destroyed: files may be unmapped during the exit
  return *entries;
}

void answer(int signal, siginfo_t* info, void*) {
  const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
  const bool is_access = info->si_code > 0;  // otherwise a process sent the signal
  for (const RegisteredRange* entry = first_entry; is_access && entry != nullptr; entry = entry->next) {
    const uintptr_t begin = entry->begin;
    if (begin == 0 || at < begin || at >= entry->end) continue;
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, entry->line.data(), entry->line.size());
    ::_exit(static_cast<int>(ErrorKind::kIo));
  }
  ::signal(signal, SIG_DFL);  // the access is repeated, and ends the process
}

}  // namespace

void exit_at_lost_pages() {
  struct sigaction action {};
  action.sa_sigaction = answer;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

MappedRange::MappedRange(const char* begin, size_t bytes, const std::string& name) {
  const std::lock_guard lock(entries_mutex);
  std::vector<RegisteredRange*>& unused = unused_entries();
  const bool is_new = unused.empty();
  entry_ = is_new ? new RegisteredRange : unused.back();
  if (!is_new) unused.pop_back();
  entry_->end = reinterpret_cast<uintptr_t>(begin) + bytes;
  entry_->line =
      concat("error: the ", util::printable(name),
             " has lost pages that were mapped into memory: it was truncated while it was in use, or "
             "its disk fails; write a new file under another name and rename it\n");
  entry_->begin = reinterpret_cast<uintptr_t>(begin);
  if (!is_new) return;
  entry_->next = first_entry;
  first_entry = entry_;
}

MappedRange::~MappedRange() {
  const std::lock_guard lock(entries_mutex);
  entry_->begin = 0;
  unused_entries().push_back(entry_);
}

}  // namespace fsdp::data
