#include "base/util/matrix_units.h"

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace fsdp::util {
namespace {

#if defined(__x86_64__)
/// Whether the system saves tile registers and permits this process to use them.
bool system_grants_tiles() {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  __cpuid_count(1, 0, eax, ebx, ecx, edx);
  constexpr uint32_t kSystemSaves = 1u << 27, kTileState = 3u << 17;
  if ((ecx & kSystemSaves) == 0) return false;
  __asm__ volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
  if ((eax & kTileState) != kTileState) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // asm/prctl.h, since Linux 5.16
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

struct alignas(64) TileConfiguration {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_of_a_row[16] = {64, 64, 64};
  uint8_t rows[16] = {16, 16, 16};
};

/// Multiplies matrices of ones, with 32 products for each sum. Must not call functions: it runs in the forked
/// child of a process with threads.
bool multiplies_ones() {
  constexpr uint16_t kOne = 0x3f80;  // in bf16
  static constexpr TileConfiguration kConfiguration;
  alignas(64) uint16_t ones[512];
  alignas(64) float sums[256];
  for (volatile uint16_t& one : ones) one = kOne;
  __asm__ volatile("ldtilecfg %0" : : "m"(kConfiguration));
  __asm__ volatile(
      "tilezero %%tmm0\n\t"
      "tileloadd (%0,%2), %%tmm1\n\t"
      "tileloadd (%0,%2), %%tmm2\n\t"
      "tdpbf16ps %%tmm2, %%tmm1, %%tmm0\n\t"
      "tilestored %%tmm0, (%1,%2)\n\t"
      "tilerelease"
      :
      : "r"(ones), "r"(sums), "r"(int64_t{64})
      : "memory");
  for (const volatile float& sum : sums) {
    if (sum != 32.0F) return false;
  }
  return true;
}
#endif

}  // namespace

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
  // The next lower level.
  ::setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16", /*overwrite=*/0);
  return true;
}

bool tiles_pass_a_trial() {
#if defined(__x86_64__)
  // Forks without SIGCHLD, which other code might wait for.
  const auto child = static_cast<pid_t>(::syscall(SYS_clone, 0L, nullptr, nullptr, nullptr, 0L));
  if (child == 0) ::syscall(SYS_exit_group, multiplies_ones() ? 0 : 1);
  int status = 1;
  while (child > 0 && ::waitpid(child, &status, __WCLONE) < 0) {
    if (errno != EINTR) return false;
  }
  return child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
#else
  return false;
#endif
}

bool is_intel() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel") != 0;
#else
  return false;
#endif
}

bool has_matrix_unit() {
#if defined(__x86_64__)
  static const bool has = [] {
    constexpr uint32_t kNeeded = 1u << 22 | 1u << 24;
    const CpuIdentity identity = cpu_identity();
    if ((identity.features & kNeeded) != kNeeded || !__builtin_cpu_supports("avx512bf16") ||
        !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512vl")) {
      return false;
    }
    return system_grants_tiles() && (identity.palettes > 0 || tiles_pass_a_trial());
  }();
  return has;
#else
  return false;
#endif
}

}  // namespace fsdp::util
