#define FSDP_CPU_LEVEL avx512bf16
#define FSDP_CPU_LEVEL_NAME "AVX-512 BF16"
#include "model/kernels/cpu/loops.inc"
