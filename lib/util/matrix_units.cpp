#include "util/matrix_units.h"

#include <cstdlib>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace fsdp::util {

CpuIdentity cpu_identity() {
  CpuIdentity identity;
#if defined(__x86_64__)
  constexpr uint32_t kFeatures = 7, kTiles = 0x1d;
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  identity.highest_leaf = __get_cpuid_max(0, nullptr);
  if (identity.highest_leaf >= kFeatures) {
    __cpuid_count(kFeatures, 0, eax, ebx, ecx, edx);
    identity.features = edx;
  }
  if (identity.highest_leaf >= kTiles) {
    __cpuid_count(kTiles, 0, eax, ebx, ecx, edx);
    identity.palettes = eax;
  }
#endif
  return identity;
}

bool announces_tiles_without_palettes(const CpuIdentity& identity) {
  constexpr uint32_t kTileFeature = 1u << 24;
  return (identity.features & kTileFeature) != 0 && identity.palettes == 0;
}

bool keep_onednn_from_broken_tiles() {
  if (!announces_tiles_without_palettes(cpu_identity())) return false;
  if (std::getenv("DNNL_MAX_CPU_ISA") != nullptr) return false;
  // The next lower level. What the user has set stays.
  ::setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16", /*overwrite=*/0);
  return true;
}

}  // namespace fsdp::util
