#pragma once

// A short spin for libgomp in the programs that compute.
//
// An OpenMP thread that waits for work spins for some milliseconds before it sleeps. On a shared machine it
// takes the time of the threads that it waits for, and a process with two threads falls to a tenth of its
// speed. libgomp reads how long to spin from the environment, in an initializer that runs when the process
// starts, so nothing in main() can set it.

/// Restarts the program with GOMP_SPINCOUNT set, unless that variable or OMP_WAIT_POLICY is set already. The
/// process id stays the same. For an entry of .preinit_array, which runs before the initializers of all
/// libraries, so that the restart only costs the few milliseconds of the dynamic loader.
void spin_shortly(int, char** arguments, char** environment);
