// A disk that is slow for one rank (LD_PRELOAD): FSDP_SLOW_SECONDS for each call that deletes a file, or writes to one,
// whose path contains FSDP_SLOW_PATH, in the process whose RANK is FSDP_SLOW_RANK.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static void wait_for(const char* path) {
  const char *part = getenv("FSDP_SLOW_PATH"), *seconds = getenv("FSDP_SLOW_SECONDS"), *slow = getenv("FSDP_SLOW_RANK"),
             *rank = getenv("RANK");
  if (part != NULL && seconds != NULL && slow != NULL && rank != NULL && strcmp(slow, rank) == 0 &&
      strstr(path, part) != NULL)
    usleep((useconds_t)(1e6 * atof(seconds)));
}

static void wait_for_descriptor(int fd) {
  char link[64], path[PATH_MAX] = "";
  if (fd <= 2) return;
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  if (readlink(link, path, sizeof(path) - 1) > 0) wait_for(path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int unlink(const char* path) {
  wait_for(path);
  return REAL(unlink)(path);
}

int unlinkat(int folder, const char* path, int flags) {
  wait_for(path);
  return REAL(unlinkat)(folder, path, flags);
}

int remove(const char* path) {
  wait_for(path);
  return REAL(remove)(path);
}

ssize_t write(int fd, const void* data, size_t bytes) {
  wait_for_descriptor(fd);
  return REAL(write)(fd, data, bytes);
}

ssize_t writev(int fd, const struct iovec* parts, int count) {
  wait_for_descriptor(fd);
  return REAL(writev)(fd, parts, count);
}
