#pragma once

// Settings of libraries that read them from the environment before main(), in the programs that compute.
//
// GOMP_SPINCOUNT: an OpenMP thread that waits for work spins for some milliseconds before it sleeps. On a
// shared machine the spinning takes the time of the threads for which it waits, and a process with two
// threads falls to a tenth of its speed.
//
// GLIBC_TUNABLES, tcache_count: a thread keeps 7 freed blocks of each small size; other blocks go to a heap
// that all threads share. A step allocates and frees thousands of small objects, such as the nodes of
// autograd's graph, many more than 7 of a size at once. The shared heap costs several percent of the host's
// time.
//
// GLIBC_TUNABLES, hugetlb=1: the heap asks for huge pages. libtorch's initializers fill 50 MiB of the heap
// with the table of its operators, one page fault after another, in a fifth of the time until main().

#include <string>

/// Restarts the program with these variables, unless the user has set them (for GOMP_SPINCOUNT also
/// OMP_WAIT_POLICY) or they are set already. The process id stays the same. Called from .preinit_array,
/// before the initializers of all libraries, so that the restart only costs the time of the dynamic loader,
/// 20 ms.
void set_early_environment(int, char** arguments, char** environment);

/// Sets the variables for the processes that the launcher starts, if `program` is one that would restart
/// itself. The processes then need no restart.
void set_environment_of(const std::string& program);

/// The time at which fsdp-launch began, by util::monotonic_seconds(), for --profile-start.
inline constexpr const char* kLaunchStart = "FSDP_LAUNCH_START";
