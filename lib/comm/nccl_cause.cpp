#include <sstream>

#include "comm/nccl_communicator.h"

namespace fsdp::comm {

// The first line says where in c10d, the second which error, and what NCCL itself has seen follows "Last
// error:".
//   NCCL error in: ../torch/.../NCCLUtils.cpp:94, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL
//   version 2.28.9 ncclInvalidUsage: This usually reflects invalid usage of NCCL library. Last error:
//   Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000
std::string nccl_cause(const std::string& text) {
  std::istringstream lines(text);
  std::string first, error, last, line;
  bool last_follows = false;
  for (int number = 0; std::getline(lines, line); ++number) {
    if (number == 0) first = line;
    if (line.starts_with("nccl") && error.empty()) error = line;
    if (last_follows && !line.starts_with("Exception raised")) last = line;  // else a stack trace follows
    last_follows = line.starts_with("Last error:");
  }
  if (!last.empty()) return last;
  return error.empty() ? first : error;
}

}  // namespace fsdp::comm
