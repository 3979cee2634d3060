#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace fsdp::util {

/// at::parallel_for(), which runs on one thread alone in files that are compiled without OpenMP, as all
/// others of this project are. Calls body(first, last) for parts of [begin, end) on at::get_num_threads()
/// threads; ranges of up to `grain` are one part. Throws what a part threw, when all have ended. Within a
/// part there are no further threads.
void parallel_for(int64_t begin, int64_t end, int64_t grain, c10::function_ref<void(int64_t, int64_t)> body);

/// Runs `body` in a thread of its own, in which neither libtorch nor the libraries below it use further
/// threads; those of other threads stay as they are. Returns when it has ended and throws what it threw.
void on_one_thread(c10::function_ref<void()> body);

}  // namespace fsdp::util
