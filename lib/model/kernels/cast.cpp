#include "model/kernels/cast.h"

#include <algorithm>

#include "base/tensor/parallel.h"
#include "base/util/error.h"
#include "base/util/past_cache.h"
#include "model/kernels/cpu/loops.h"
#include "model/kernels/kernel_table.h"

namespace fsdp::kernels {

void cast(const at::Tensor& to, const at::Tensor& from) {
  FSDP_CHECK(to.numel() == from.numel() && to.is_contiguous() && from.is_contiguous());
  const bool rounds = from.scalar_type() == at::kFloat && to.scalar_type() == at::kBFloat16;
  if (!rounds || !from.is_cpu() || !to.is_cpu() ||
      !util::is_written_past_cache(static_cast<int64_t>(from.nbytes()))) {
    to.copy_(from);
    return;
  }
  constexpr int64_t kRun = 1024;
  const float* values = from.const_data_ptr<float>();
  auto* rounded = static_cast<uint16_t*>(to.data_ptr());
  const int64_t n = to.numel();
  util::parallel_for(0, (n + kRun - 1) / kRun, kGrain / kRun, [&](int64_t first, int64_t last) {
    alignas(64) uint16_t run[kRun];
    for (int64_t begin = first * kRun; begin < std::min(last * kRun, n); begin += kRun) {
      const int64_t length = std::min(kRun, n - begin);
      cpu::round_to_bfloat16(values + begin, run, length);
      util::write_past_cache(rounded + begin, run, length * int64_t{sizeof(uint16_t)});
    }
    util::end_writes_past_cache();
  });
}

}  // namespace fsdp::kernels
