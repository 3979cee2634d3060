// libcupti, by which libtorch's profiler observes a GPU. The real one needs the driver's internals, and from
// CUDA 13.2 on it crashes without them. This one says that it cannot observe anything, so traces have no
// kernels.

#include <cstdint>

extern "C" {
int cuptiGetResultString(int, const char** text) {
  *text = "the stand-in for CUDA has no CUPTI";
  return 0;
}

int cuptiGetVersion(uint32_t* version) {
  *version = 130000;
  return 0;
}
}
