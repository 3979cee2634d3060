// What libFuzzer calls; FSDP_FUZZ_TARGET is the function of targets.h.

#include "fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return fsdp::fuzz::FSDP_FUZZ_TARGET(data, size);
}
