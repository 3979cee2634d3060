#define FSDP_CPU_LEVEL avx512
#define FSDP_CPU_LEVEL_NAME "AVX-512"
#include "kernels/cpu/loops.inc"
