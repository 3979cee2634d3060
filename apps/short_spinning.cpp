#include "short_spinning.h"

#include <alloca.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <cstddef>

namespace {

// Some tens of microseconds, longer than most gaps between the parallel loops of a step. libgomp itself uses
// this number if it has more threads than cores; otherwise its default is 300,000.
char setting[] = "GOMP_SPINCOUNT=1000";

/// strncmp() may depend on an initializer that has not run yet.
bool begins_with(const char* text, const char* start) {
  while (*start != '\0' && *text == *start) ++text, ++start;
  return *start == '\0';
}

}  // namespace

// Sanitizers are not initialized yet either.
__attribute__((no_sanitize("address", "undefined"))) void spin_shortly(int, char** arguments,
                                                                       char** environment) {
  size_t count = 0;
  for (; environment[count] != nullptr; ++count) {
    if (begins_with(environment[count], "OMP_WAIT_POLICY=")) return;
    if (begins_with(environment[count], "GOMP_SPINCOUNT=")) return;
  }
  // If the dynamic loader was started with the program as its argument, execve() would start the loader.
  if (::getauxval(AT_BASE) == 0) return;
  auto** extended = static_cast<char**>(alloca((count + 2) * sizeof(char*)));
  for (size_t i = 0; i < count; ++i) extended[i] = environment[i];
  extended[count] = setting;
  extended[count + 1] = nullptr;
  // Under the name that it was started with, which ps and pkill show. If this fails, the program continues as it is.
  ::execve(reinterpret_cast<const char*>(::getauxval(AT_EXECFN)), arguments, extended);
}
