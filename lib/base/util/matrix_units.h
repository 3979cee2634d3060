#pragma once

// Intel's matrix units (AMX), which compute products in bf16 by model/kernels/cpu/tiles.h and by oneDNN.
//
// Some virtual machines announce them but omit the CPUID leaf that describes their tiles. oneDNN then
// configures tiles of size 0, and the first product kills the process by SIGILL. On such a machine this
// library disables them for oneDNN (ONEDNN_MAX_CPU_ISA), unless the environment sets what oneDNN may use. The
// manual fixes the tiles' size (palette 1), so model/kernels/cpu/tiles.h may use them if a trial succeeds.

#include <cstdint>

namespace fsdp::util {

/// See Intel's Software Developer's Manual, volume 2A, CPUID.
struct CpuIdentity {
  uint32_t features = 0;      ///< leaf 7, register edx; bit 22: bf16 in tiles, bit 24: there are tiles
  uint32_t highest_leaf = 0;  ///< leaf 0, register eax
  uint32_t palettes = 0;      ///< leaf 1Dh, register eax: the highest palette of tiles; 0: none
};
CpuIdentity cpu_identity();

/// Whether CPUID announces tiles but does not describe them.
bool announces_tiles_without_palettes(const CpuIdentity& identity);

/// To be called before the first product, as lib/model/kernels does when it is loaded. Returns whether it was
/// necessary.
bool keep_onednn_from_broken_tiles();

/// Whether this process can multiply bf16 with tiles of 16 rows of 64 bytes: the CPU has them, the system
/// saves their registers and permits their use, and, if CPUID does not describe them, a trial has passed.
/// Determined once.
bool has_matrix_unit();

/// Whether a product by tiles is correct, tried in a child process, which may die of SIGILL.
bool tiles_pass_a_trial();

}  // namespace fsdp::util
