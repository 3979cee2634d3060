#define FSDP_CPU_LEVEL avx2
#define FSDP_CPU_LEVEL_NAME "AVX2"
#include "model/kernels/cpu/loops.inc"
