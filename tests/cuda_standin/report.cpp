#include "report.h"

#include <execinfo.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "device.h"
#include "settings.h"

namespace standin {
namespace {

struct Report {
  std::map<std::string, std::unique_ptr<std::atomic<long>>> counts;
  std::set<std::string> texts;        ///< of violations
  std::vector<std::string> launches;  ///< in order
  long total_violations = 0;
  bool counts_written = false;
};

Report& report() {
  static auto* report = new Report;
  return *report;
}

/// A file for each process. Its name begins with the value of a variable; null if that is empty.
std::FILE* open_file(const std::string& begin) {
  if (begin.empty()) return nullptr;
  const std::string path = begin + ".rank" + settings().rank + "." + std::to_string(::getpid());
  return std::fopen(path.c_str(), "a");
}

std::FILE* open_report() { return open_file(settings().report); }

void write_launches() {
  std::FILE* file = open_file(settings().launches);
  if (file == nullptr) return;
  for (const std::string& line : report().launches) std::fprintf(file, "%s\n", line.c_str());
  std::fclose(file);
}

}  // namespace

long total_violations() {
  Lock lock(mutex());
  return report().total_violations;
}

std::recursive_mutex& mutex() {
  static auto* mutex = new std::recursive_mutex;
  return *mutex;
}

std::atomic<long>& count_of(const std::string& name) {
  Lock lock(mutex());
  std::unique_ptr<std::atomic<long>>& count = report().counts[name];
  if (!count) count = std::make_unique<std::atomic<long>>(0);
  return *count;
}

void violation(const std::string& what) {
  Lock lock(mutex());
  ++report().total_violations;
  if (!report().texts.insert(what).second) return;
  char thread[32] = "";
  ::pthread_getname_np(::pthread_self(), thread, sizeof(thread));
  std::fprintf(stderr, "[stand-in, process %d, thread %s] VIOLATION: %s\n", ::getpid(), thread, what.c_str());
  if (settings().stacks) {
    void* frames[40];
    ::backtrace_symbols_fd(frames, ::backtrace(frames, 40), STDERR_FILENO);
  }
  if (std::FILE* file = open_report()) {
    std::fprintf(file, "VIOLATION\t%s\n", what.c_str());
    std::fclose(file);
  }
}

void write_report() {
  Lock lock(mutex());
  if (!any_context() || report().counts_written) return;
  report().counts_written = true;
  write_launches();
  std::FILE* file = open_report();
  if (file == nullptr) return;
  for (const auto& [name, count] : report().counts)
    std::fprintf(file, "%ld\t%s\n", count->load(), name.c_str());
  std::fclose(file);
}

namespace {

/// For processes that end by exit(); exit.cpp has those that end by _exit().
struct AtExit {
  ~AtExit() { write_report(); }
} at_exit;

}  // namespace
}  // namespace standin

extern "C" {
void standin_count(const char* name, long more) { standin::count_of(name).fetch_add(more); }
void standin_launched(const char* what) {
  if (standin::settings().launches.empty()) return;
  standin::Lock lock(standin::mutex());
  standin::report().launches.emplace_back(what);
}
void standin_violation(const char* what) { standin::violation(what); }
long standin_violations() { return standin::total_violations(); }
void standin_finish() { standin::write_report(); }
}
