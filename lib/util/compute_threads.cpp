#include "util/compute_threads.h"

#include <sched.h>
#include <strings.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>

#include "util/error.h"

namespace fsdp::util {
namespace {

/// Logical CPUs of one core are siblings of the same first one.
int physical_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
  std::set<int> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    std::ifstream siblings(concat("/sys/devices/system/cpu/cpu", cpu, "/topology/thread_siblings_list"));
    int first = cpu;
    cores.insert(siblings >> first ? first : cpu);
  }
  return std::max<int>(1, static_cast<int>(cores.size()));
}

/// 0: nothing is said. What MKL cannot read is one thread to it.
int threads_of_mkl() {
  const char* text = std::getenv("MKL_NUM_THREADS");
  if (text == nullptr || *text == '\0') return 0;
  char* end = nullptr;
  const long threads = std::strtol(text, &end, 10);
  return *end == '\0' && threads >= 0 ? static_cast<int>(threads) : 1;
}

/// 0: nothing is said. Of a list, which is for nested teams, the first.
int threads_of_openmp() {
  const char* text = std::getenv("OMP_NUM_THREADS");
  return text == nullptr ? 0 : std::max(0, std::atoi(text));
}

bool may_be_more_than_cores() {
  const char* dynamic = std::getenv("MKL_DYNAMIC");
  return dynamic != nullptr && strcasecmp(dynamic, "false") == 0;
}

}  // namespace

// The rule is that of MKL, by which libtorch goes.
int default_compute_threads() {
  const int cores = physical_cores();
  int threads = threads_of_mkl();
  if (threads == 0) threads = threads_of_openmp();
  if (threads == 0) return cores;
  return may_be_more_than_cores() ? threads : std::min(threads, cores);
}

}  // namespace fsdp::util
