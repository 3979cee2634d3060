#define FSDP_CPU_LEVEL avx2
#define FSDP_CPU_LEVEL_NAME "AVX2"
#include "kernels/cpu/loops.inc"
