#include "kernels/cpu/loops.h"

#include "kernels/cpu/attention_loops.h"
#include "kernels/cpu/packing.h"

namespace fsdp::kernels::cpu {

#define FSDP_DECLARE_LEVEL(level)                      \
  namespace level {                                    \
  extern const Loops kFloatLoops;                      \
  extern const Loops kBFloat16Loops;                   \
  extern const AttentionLoops kFloatAttentionLoops;    \
  extern const AttentionLoops kBFloat16AttentionLoops; \
  extern const Packing kFloatPacking;                  \
  extern const Packing kBFloat16Packing;               \
  }
FSDP_DECLARE_LEVEL(baseline)
#ifdef FSDP_X86_LEVELS
FSDP_DECLARE_LEVEL(avx2)
FSDP_DECLARE_LEVEL(avx512)
#endif

namespace {

enum class Level { kBaseline, kAvx2, kAvx512 };

Level level_here() {
#ifdef FSDP_X86_LEVELS
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return Level::kAvx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Level::kAvx2;
#endif
  return Level::kBaseline;
}

#ifdef FSDP_X86_LEVELS
/// Whether there are fast products.
bool multiplies(Element element) {
  static const bool is_there = level_here() == Level::kAvx512;
  return is_there && (element == Element::kFloat || __builtin_cpu_supports("avx512bf16"));
}
#endif

}  // namespace

const Loops& loops(Element element) {
  const bool is_float = element == Element::kFloat;
#ifdef FSDP_X86_LEVELS
  static const Level level = level_here();
  if (level == Level::kAvx512) return is_float ? avx512::kFloatLoops : avx512::kBFloat16Loops;
  if (level == Level::kAvx2) return is_float ? avx2::kFloatLoops : avx2::kBFloat16Loops;
#endif
  return is_float ? baseline::kFloatLoops : baseline::kBFloat16Loops;
}

const AttentionLoops* attention_loops([[maybe_unused]] Element element) {
#ifdef FSDP_X86_LEVELS
  if (multiplies(element)) {
    return element == Element::kFloat ? &avx512::kFloatAttentionLoops : &avx512::kBFloat16AttentionLoops;
  }
#endif
  return nullptr;
}

const Packing* packing([[maybe_unused]] Element element) {
#ifdef FSDP_X86_LEVELS
  if (multiplies(element)) {
    return element == Element::kFloat ? &avx512::kFloatPacking : &avx512::kBFloat16Packing;
  }
#endif
  return nullptr;
}

}  // namespace fsdp::kernels::cpu
