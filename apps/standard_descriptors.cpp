// Every program that is started with a closed standard descriptor opens it on /dev/null before anything else.
// The first file that it opens would otherwise get the number, and receive the printed text: a log in a
// checkpoint. Descriptors for output are opened for reading, so that lost output stays an error.

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

/// Opens descriptors by system calls, because neither sanitizers nor libraries are initialized yet.
__attribute__((no_sanitize("address", "thread", "undefined"))) void open_closed_descriptors(int, char**,
                                                                                            char**) {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::syscall(SYS_fcntl, fd, F_GETFD) >= 0) continue;
    // The lowest free number is fd, because those below are open by now.
    if (::syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDONLY) < 0) return;
  }
}

[[gnu::section(".preinit_array"),
  gnu::used]] void (*const before_libraries)(int, char**, char**) = open_closed_descriptors;

}  // namespace
