#define FSDP_CPU_LEVEL avx512
#define FSDP_CPU_LEVEL_NAME "AVX-512"
#include "model/kernels/cpu/loops.inc"
