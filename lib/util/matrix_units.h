#pragma once

// Intel's matrix units (AMX): products in bf16 by kernels/cpu/tiles.h, and by oneDNN.
//
// Some virtual machines announce them and leave out the leaf of CPUID that describes their tiles. oneDNN then
// configures tiles of no size, and the first product ends the process with SIGILL. On such a machine this
// library keeps oneDNN from them (ONEDNN_MAX_CPU_ISA), unless the environment has said what oneDNN may use.
// The tiles themselves are of a size that the manual fixes (palette 1), and work there if a trial says so.

#include <cstdint>

namespace fsdp::util {

/// What CPUID says. See Intel's Software Developer's Manual, volume 2A, CPUID.
struct CpuIdentity {
  uint32_t features = 0;      ///< leaf 7, register edx; bit 22: bf16 in tiles, bit 24: there are tiles
  uint32_t highest_leaf = 0;  ///< leaf 0, register eax
  uint32_t palettes = 0;      ///< leaf 1Dh, register eax: the highest palette of tiles; 0: none
};
CpuIdentity cpu_identity();

/// Whether tiles are announced and not described.
bool announces_tiles_without_palettes(const CpuIdentity& identity);

/// Once before the first product, as lib/kernels does when it is loaded; returns whether it had to.
bool keep_onednn_from_broken_tiles();

/// Whether this process may multiply bf16 with tiles of 16 rows of 64 bytes: the CPU has them, the system
/// keeps their registers and lets this process have them, and where they are not described, a child process
/// has multiplied with them and lived. Found out by the first call.
bool has_matrix_unit();

/// Whether a product by tiles is right, in a child process, which this CPU may end.
bool tiles_pass_a_trial();

}  // namespace fsdp::util
