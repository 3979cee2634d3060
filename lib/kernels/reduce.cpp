#include "kernels/reduce.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "kernels/fused.h"
#include "kernels/row_loops.h"
#include "util/error.h"

namespace fsdp::kernels {

double sum_of_squares(const at::Tensor& x) {
  FSDP_CHECK(can_fuse(x) && x.is_contiguous());
  constexpr int64_t kPart = 1 << 16;
  const int64_t n = x.numel(), parts = (n + kPart - 1) / kPart;
  const cpu::Loops& loops = loops_of(x);
  std::vector<double> sums(static_cast<size_t>(parts));
  at::parallel_for(0, parts, 16, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const char* first = static_cast<const char*>(x.const_data_ptr()) +
                          part * kPart * static_cast<int64_t>(x.element_size());
      sums[static_cast<size_t>(part)] = loops.sum_of_squares(first, std::min(kPart, n - part * kPart));
    }
  });
  double sum = 0;
  for (double part : sums) sum += part;
  return sum;
}

at::Tensor sum_of_rows(const at::Tensor& x) {
  FSDP_CHECK(can_fuse(x) && x.is_contiguous());
  const int64_t width = x.size(-1);
  return sums_of_rows({rows_of(x), width}, 1, [&](int64_t first, int64_t rows, float* sums) {
    loops_of(x).add_rows(row_of(x, first, width), sums, rows, width);
  })[0];
}

}  // namespace fsdp::kernels
