// Compiled with OpenMP, on which ATen/Parallel.h depends.

#include "base/tensor/parallel.h"

#include <ATen/Parallel.h>
#include <omp.h>

#include <exception>

#include "base/util/limits.h"

#ifndef _OPENMP
#error "at::parallel_for() would run on one thread"
#endif

// MKL's number of threads for the calling thread, which precedes OpenMP's, if libtorch has MKL.
extern "C" __attribute__((weak)) int MKL_Set_Num_Threads_Local(int threads);

namespace fsdp::util {

void parallel_for(int64_t begin, int64_t end, int64_t grain, c10::function_ref<void(int64_t, int64_t)> body) {
  at::parallel_for(begin, end, grain, body);
}

void on_one_thread(c10::function_ref<void()> body) {
  std::exception_ptr thrown;
  start_thread([&] {
    try {
      // The first query of a thread sets its number, and libtorch and the code inlined here each record that
      // they have done so. at::set_num_threads() would change all threads.
      at::get_num_threads();
      at::internal::lazy_init_num_threads();
      omp_set_num_threads(1);
      if (MKL_Set_Num_Threads_Local != nullptr) MKL_Set_Num_Threads_Local(1);
      body();
    } catch (...) {
      thrown = std::current_exception();
    }
  }).join();
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace fsdp::util
