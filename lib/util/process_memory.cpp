#include "util/process_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

#include "util/system_files.h"

namespace fsdp::util {

// getrusage() would count the program that this process was before exec(), such as a launcher in Python.
int64_t peak_resident_bytes() { return kilobytes("/proc/self/status", "VmHWM").value_or(resident_bytes()); }

int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total_pages = 0, resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

int64_t minor_faults() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

}  // namespace fsdp::util
