#include "kernels/cpu/loops.h"

namespace fsdp::kernels::cpu {

#define FSDP_DECLARE_LEVEL(level)    \
  namespace level {                  \
  extern const Loops kFloatLoops;    \
  extern const Loops kBFloat16Loops; \
  }
FSDP_DECLARE_LEVEL(baseline)
#ifdef FSDP_X86_LEVELS
FSDP_DECLARE_LEVEL(avx2)
FSDP_DECLARE_LEVEL(avx512)
#endif

const Loops& loops(Element element) {
  const bool is_float = element == Element::kFloat;
#ifdef FSDP_X86_LEVELS
  static const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  static const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (has_avx512) return is_float ? avx512::kFloatLoops : avx512::kBFloat16Loops;
  if (has_avx2) return is_float ? avx2::kFloatLoops : avx2::kBFloat16Loops;
#endif
  return is_float ? baseline::kFloatLoops : baseline::kBFloat16Loops;
}

}  // namespace fsdp::kernels::cpu
