#define FSDP_CPU_LEVEL baseline
#define FSDP_CPU_LEVEL_NAME "baseline"
#include "model/kernels/cpu/loops.inc"
