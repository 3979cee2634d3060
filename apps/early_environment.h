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

/// Restarts the program with these variables, unless the user has set them (or OMP_WAIT_POLICY, for the first) or
/// they are set already. The process id stays the same. For an entry of .preinit_array, which runs before the
/// initializers of all libraries, so that the restart only costs the few milliseconds of the dynamic loader.
void set_early_environment(int, char** arguments, char** environment);
