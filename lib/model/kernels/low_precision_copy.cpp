#include "model/kernels/low_precision_copy.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "base/util/error.h"
#include "model/kernels/cast.h"

namespace fsdp::kernels {

LowPrecisionCopy::LowPrecisionCopy(at::Tensor of, at::Tensor values)
    : of_(std::move(of)), values_(std::move(values)) {
  FSDP_CHECK(values_.numel() == of_.numel() && values_.device() == of_.device());
}

void LowPrecisionCopy::update() {
  if (!is_current()) rewrite();
}

void LowPrecisionCopy::rewrite() {
  const at::NoGradGuard no_grad;
  cast(values_, of_);
  note_written();
}

}  // namespace fsdp::kernels
