#include "util/host_name.h"

#include <unistd.h>

namespace fsdp::util {

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof(name) - 1);
  return *name ? name : "this machine";
}

}  // namespace fsdp::util
