// Compiled with OpenMP, which ATen/Parallel.h looks at.

#include "util/parallel.h"

#include <ATen/Parallel.h>

#ifndef _OPENMP
#error "at::parallel_for() would run on one thread"
#endif

namespace fsdp::util {

void parallel_for(int64_t begin, int64_t end, int64_t grain, c10::function_ref<void(int64_t, int64_t)> body) {
  at::parallel_for(begin, end, grain, body);
}

}  // namespace fsdp::util
