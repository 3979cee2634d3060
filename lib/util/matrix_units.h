#pragma once

// Intel's matrix units (AMX), which oneDNN multiplies bf16 with.
//
// Some virtual machines announce them and leave out the leaf of CPUID that describes their tiles. oneDNN then
// configures tiles of no size, and the first product ends the process with SIGILL. On such a machine this
// library keeps oneDNN from them (ONEDNN_MAX_CPU_ISA), unless the environment has said what oneDNN may use.

#include <cstdint>

namespace fsdp::util {

/// What CPUID says. See Intel's Software Developer's Manual, volume 2A, CPUID.
struct CpuIdentity {
  uint32_t features = 0;      ///< leaf 7, register edx; bit 24: there are tiles
  uint32_t highest_leaf = 0;  ///< leaf 0, register eax
  uint32_t palettes = 0;      ///< leaf 1Dh, register eax: the highest palette of tiles; 0: none
};
CpuIdentity cpu_identity();

/// Whether tiles are announced and not described.
bool announces_tiles_without_palettes(const CpuIdentity& identity);

/// Once before the first product, as lib/kernels does when it is loaded; returns whether it had to.
bool keep_onednn_from_broken_tiles();

}  // namespace fsdp::util
