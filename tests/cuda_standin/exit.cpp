// Writes the report of a process that ends without destructors.

#include <sys/syscall.h>
#include <unistd.h>

#include "standin.h"

extern "C" {
void _exit(int code) {
  standin_finish();
  for (;;) ::syscall(SYS_exit_group, code);
}
void _Exit(int code) { _exit(code); }
}
