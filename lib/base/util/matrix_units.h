#pragma once

// Intel's matrix units (AMX), with which model/kernels/cpu/tiles.h and oneDNN compute products in bf16.
//
// Some virtual machines announce AMX but omit the CPUID leaf that describes its tiles. oneDNN then configures
// tiles of size 0, and the first product kills the process by SIGILL. On such a machine this library disables
// AMX for oneDNN (ONEDNN_MAX_CPU_ISA), unless the environment sets that variable. The manual fixes the tiles'
// size (palette 1), so model/kernels/cpu/tiles.h may use them if a trial succeeds.

#include <cstdint>

namespace fsdp::util {

/// The part of CPUID that concerns tiles (Intel Software Developer's Manual, volume 2A, CPUID).
struct CpuIdentity {
  uint32_t features = 0;      ///< leaf 7, register edx; bit 22: bf16 in tiles, bit 24: there are tiles
  uint32_t highest_leaf = 0;  ///< leaf 0, register eax
  uint32_t palettes = 0;      ///< leaf 1Dh, register eax: the highest palette of tiles; 0: none
};
CpuIdentity cpu_identity();

/// Whether CPUID announces tiles but does not describe them.
bool announces_tiles_without_palettes(const CpuIdentity& identity);

/// Disables AMX for oneDNN if the CPU omits the description of its tiles. Returns whether that was necessary.
/// Must be called before the first product; lib/model/kernels does so when it is loaded.
bool keep_onednn_from_broken_tiles();

/// Whether this process can multiply bf16 with tiles of 16 rows of 64 bytes: the CPU has them, the system
/// saves their registers and permits their use, and, if CPUID does not describe them, a trial has passed.
/// Determined once.
bool has_matrix_unit();

/// Whether the CPU is one of Intel's.
bool is_intel();

/// Whether a product by tiles is correct. The trial runs in a child process, which may die of SIGILL.
bool tiles_pass_a_trial();

}  // namespace fsdp::util
