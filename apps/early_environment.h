#pragma once

// Settings of libraries that read them from the environment before main(), in the programs that compute.
//
// GOMP_SPINCOUNT: an OpenMP thread that waits for work spins for some milliseconds before it sleeps. On a shared
// machine it takes the time of the threads that it waits for, and a process with two threads falls to a tenth of
// its speed.
//
// GLIBC_TUNABLES, tcache_count: of each small size, a thread keeps 7 freed blocks, the others go to a heap that all
// threads share. A step allocates and frees thousands of small objects, such as the nodes of autograd's graph, many
// more than 7 of a size at once; the heap costs it several percent of the host's time.
//
// GLIBC_TUNABLES, hugetlb=1: the heap asks for huge pages. libtorch's initializers fill 50 MiB of it with the table of
// its operators, one page fault after another: a fifth of the time until main().

#include <string>

/// Restarts the program with these variables, unless the user has set them (or OMP_WAIT_POLICY, for the first) or
/// they are set already. The process id stays the same. For an entry of .preinit_array, which runs before the
/// initializers of all libraries, so that the restart only costs what the dynamic loader takes, 20 ms.
void set_early_environment(int, char** arguments, char** environment);

/// For the launcher: sets them for the processes that it starts, which then need no restart, if `program` is one of
/// those that would.
void set_environment_of(const std::string& program);

/// The time at which fsdp-launch began, by util::monotonic_seconds(), for --profile-start.
inline constexpr const char* kLaunchStart = "FSDP_LAUNCH_START";
