#include "early_environment.h"

#include <alloca.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>

namespace {

// Spins for some tens of microseconds, longer than most gaps between the parallel loops of a step. libgomp
// itself uses this number if it has more threads than cores; otherwise its default is 300,000.
char spinning[] = "GOMP_SPINCOUNT=1000";
char allocation[] = "GLIBC_TUNABLES=glibc.malloc.tcache_count=512:glibc.malloc.hugetlb=1";

/// Compares without strncmp(), which may depend on an initializer that has not run yet.
bool begins_with(const char* text, const char* start) {
  while (*start != '\0' && *text == *start) ++text, ++start;
  return *start == '\0';
}

}  // namespace

// Sanitizers are not initialized yet either.
__attribute__((no_sanitize("address", "undefined"))) void set_early_environment(int, char** arguments,
                                                                                char** environment) {
  size_t count = 0;
  bool has_spinning = false, has_allocation = false;
  for (; environment[count] != nullptr; ++count) {
    if (begins_with(environment[count], "OMP_WAIT_POLICY=")) has_spinning = true;
    if (begins_with(environment[count], "GOMP_SPINCOUNT=")) has_spinning = true;
    if (begins_with(environment[count], "GLIBC_TUNABLES=")) has_allocation = true;
  }
  if (has_spinning && has_allocation) return;
  // If the dynamic loader was started with the program as its argument, execve() would start the loader.
  if (::getauxval(AT_BASE) == 0) return;
  auto** extended = static_cast<char**>(alloca((count + 3) * sizeof(char*)));
  for (size_t i = 0; i < count; ++i) extended[i] = environment[i];
  if (!has_spinning) extended[count++] = spinning;
  if (!has_allocation) extended[count++] = allocation;
  extended[count] = nullptr;
  // The name with which the program was started is kept, because ps and pkill show it. If execve() fails, the
  // program continues as it is.
  ::execve(reinterpret_cast<const char*>(::getauxval(AT_EXECFN)), arguments, extended);
}

void set_environment_of(const std::string& program) {
  const std::string name = std::filesystem::path(program).filename().string();
  if (name != "fsdp-train" && name != "fsdp-generate") return;
  for (const std::string setting : {spinning, allocation}) {
    const size_t equals = setting.find('=');
    const std::string variable = setting.substr(0, equals);
    if (variable == "GOMP_SPINCOUNT" && std::getenv("OMP_WAIT_POLICY") != nullptr) continue;
    ::setenv(variable.c_str(), setting.c_str() + equals + 1, /*overwrite=*/0);
  }
}
