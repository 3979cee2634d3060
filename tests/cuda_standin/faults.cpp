// STANDIN_FAULT="rank=1,do=cuda_malloc:40": what the environment does to a program (README.md has the
// list).

#include <cstdlib>
#include <cstring>
#include <string>

#include "settings.h"
#include "standin.h"

extern "C" long standin_fault(const char* what) {
  const std::string& fault = standin::settings().fault;
  const std::string rank = "rank=" + standin::settings().rank + ",", wanted = std::string("do=") + what + ":";
  if (fault.empty() || (fault.starts_with("rank=") && !fault.starts_with(rank))) return -1;
  for (size_t at = fault.find("do="); at != std::string::npos; at = fault.find("do=", at + 1)) {
    if (fault.compare(at, wanted.size(), wanted) == 0) return std::atol(fault.c_str() + at + wanted.size());
  }
  return -1;
}
