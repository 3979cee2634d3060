#pragma once

#include <ATen/autocast_mode.h>

namespace fsdp::testing {

/// What torch.autocast("cpu", dtype) is in Python, which drops the kept copies of weights at its end.
class AutocastRegion {
 public:
  explicit AutocastRegion(at::ScalarType type = at::kBFloat16)
      : type_(at::autocast::get_autocast_dtype(at::kCPU)) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, type);
  }
  ~AutocastRegion() {
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::set_autocast_dtype(at::kCPU, type_);
    at::autocast::clear_cache();
  }
  AutocastRegion(const AutocastRegion&) = delete;
  AutocastRegion& operator=(const AutocastRegion&) = delete;

 private:
  at::ScalarType type_;
};

}  // namespace fsdp::testing
