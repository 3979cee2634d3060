#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace fsdp::util {

/// Runs at::parallel_for(), which would use only one thread if other files of this project called it, since
/// they are compiled without OpenMP. Calls body(first, last) for parts of [begin, end) on
/// at::get_num_threads() threads; a range of up to `grain` is one part. Calls within a part use one thread.
/// Rethrows an exception of a part after all parts have ended.
void parallel_for(int64_t begin, int64_t end, int64_t grain, c10::function_ref<void(int64_t, int64_t)> body);

/// Runs `body` in a new thread in which neither libtorch nor its libraries use further threads, and waits for
/// it. Other threads keep their settings. Rethrows the exception of `body`.
void on_one_thread(c10::function_ref<void()> body);

}  // namespace fsdp::util
