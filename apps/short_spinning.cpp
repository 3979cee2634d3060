// Linked into the programs that compute: gives libgomp a short spin.
//
// A thread of OpenMP that waits for work spins for some milliseconds before it sleeps. On a machine that is
// shared, those cores are somebody's: the waiting thread takes the time of the one that it waits for, and a
// process with two threads falls to a tenth of its speed. libgomp reads how long to spin from the
// environment, in an initialiser that runs when the process starts, so nothing in main() can set it. What
// stands in .preinit_array runs before the initialisers of all libraries: it starts the program anew with the
// variable set, which costs the few milliseconds that the dynamic loader takes. In the sense of the system
// the process stays the same.
//
// Who has set OMP_WAIT_POLICY or GOMP_SPINCOUNT is not overruled.

#include <alloca.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <cstddef>

namespace {

// Some tens of microseconds, longer than most gaps between the parallel loops of a step: what libgomp itself
// takes where it has more threads than cores, which is all that it can see of other load. Its default is
// 300,000.
char setting[] = "GOMP_SPINCOUNT=1000";

/// strncmp() may be resolved by an initialiser that has not run yet.
bool begins_with(const char* text, const char* start) {
  while (*start != '\0' && *text == *start) ++text, ++start;
  return *start == '\0';
}

// Sanitizers are not initialised yet either.
__attribute__((no_sanitize("address", "undefined"))) void spin_shortly(int, char** arguments,
                                                                       char** environment) {
  size_t count = 0;
  for (; environment[count] != nullptr; ++count) {
    if (begins_with(environment[count], "OMP_WAIT_POLICY=")) return;
    if (begins_with(environment[count], "GOMP_SPINCOUNT=")) return;
  }
  // Started as an argument of the dynamic loader, the program is not what would be started again.
  if (::getauxval(AT_BASE) == 0) return;
  auto** extended = static_cast<char**>(alloca((count + 2) * sizeof(char*)));
  for (size_t i = 0; i < count; ++i) extended[i] = environment[i];
  extended[count] = setting;
  extended[count + 1] = nullptr;
  // By the name that it was started with, which ps and pkill show. Where that fails, it goes on as it is.
  ::execve(reinterpret_cast<const char*>(::getauxval(AT_EXECFN)), arguments, extended);
}

__attribute__((section(".preinit_array"), used)) void (*const before_initialisers)(int, char**,
                                                                                   char**) = spin_shortly;

}  // namespace
