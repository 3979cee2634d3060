#include "model/kernels/cpu/loops.h"

#include <ATen/Version.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <string>

namespace fsdp::kernels::cpu {

namespace baseline {
extern const Level kLevel;
}
#ifdef FSDP_X86_LEVELS
namespace avx2 {
extern const Level kLevel;
}
namespace avx512 {
extern const Level kLevel;
}
namespace avx512bf16 {
extern const Level kLevel;
}
#endif

namespace {

#ifdef FSDP_X86_LEVELS
/// Whether the environment lets oneDNN, whose products the levels of AVX-512 need, use AVX-512.
bool onednn_may_use_avx512() {
  return std::ranges::none_of(std::array{"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"}, [](const char* name) {
    const char* value = std::getenv(name);
    std::string most = value == nullptr ? "" : value;
    std::ranges::transform(most, most.begin(), [](unsigned char c) { return std::toupper(c); });
    return most == "SSE41" || most == "AVX" || most.starts_with("AVX2");
  });
}
#endif

const Level& level_here() {
#ifdef FSDP_X86_LEVELS
  static const Level* const level = [] {
    const std::string most = at::get_cpu_capability();  // ATEN_CPU_CAPABILITY may lower it
    if (most == "AVX512" && onednn_may_use_avx512() && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
      return __builtin_cpu_supports("avx512bf16") ? &avx512bf16::kLevel : &avx512::kLevel;
    }
    const bool has_avx2 =
        most.starts_with("AVX") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return has_avx2 ? &avx2::kLevel : &baseline::kLevel;
  }();
  return *level;
#else
  return baseline::kLevel;
#endif
}

bool has_fast_products([[maybe_unused]] Element element) {
#ifdef FSDP_X86_LEVELS
  if (&level_here() == &avx512bf16::kLevel) return element != Element::kHalf;
  return &level_here() != &baseline::kLevel && element == Element::kFloat;
#else
  return false;
#endif
}

}  // namespace

const Loops& loops(Element element) { return level_here().loops[static_cast<int>(element)]; }

const Packing* packing(Element element) {
  return has_fast_products(element) ? &level_here().packing[static_cast<int>(element)] : nullptr;
}

const Packing* widening() { return has_fast_products(Element::kFloat) ? &level_here().widening : nullptr; }

const AttentionLoops* attention_loops(Element element) {
  return has_fast_products(element) ? &level_here().attention[static_cast<int>(element)] : nullptr;
}

void round_stochastically(bool to_half, const RoundedRun& run) { level_here().round[to_half ? 1 : 0](run); }

void count_squares(const float* x, int64_t n, int64_t* counts) { level_here().count_squares(x, n, counts); }

void divide(float* x, int64_t n, float divisor) { level_here().divide(x, n, divisor); }

void round_to_bfloat16(const float* from, uint16_t* to, int64_t n) {
  level_here().round_to_bfloat16(from, to, n);
}

float encode_run(bool is_signed, const float* from, uint8_t* codes, int64_t n) {
  return level_here().coding[is_signed ? 1 : 0].encode(from, codes, n);
}

void decode_run(bool is_signed, const uint8_t* codes, float scale, float* to, int64_t n) {
  level_here().coding[is_signed ? 1 : 0].decode(codes, scale, to, n);
}

void dequantize(Element element, const QuantizedRun& run) {
  level_here().dequantize[static_cast<int>(element)](run);
}

}  // namespace fsdp::kernels::cpu
