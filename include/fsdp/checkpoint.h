#pragma once

/// \file
/// Sharded checkpoints: every rank writes its own file, the manifest with the hashes comes last, and another
/// number of ranks, another wrapping or another strategy may load them. `fsdp-ckpt` consolidates, converts
/// and verifies them.
///
/// Collective: save_sharded(). load_slices() and read_manifest() are not.
///
/// Errors: Error(kCheckpoint) for what is missing, damaged or does not fit, Error(kIo) for a disk that
/// refuses. A save that throws does so on every rank and leaves no checkpoint.
///
/// Lifetime: slices are views of the live shards and states: what is loaded into them is loaded.
///
/// \code{.cpp}
/// void save(fsdp::Engine& engine, fsdp::Optimizer& optimizer, const std::filesystem::path& run, int64_t step) {
///   fsdp::save_sharded({.root = run, .step = step, .layout = engine.options().layout.name()},
///                      fsdp::state_slices(engine, optimizer, fsdp::SlicePurpose::kSave), engine.communicator());
/// }
/// void load(fsdp::Engine& engine, fsdp::Optimizer& optimizer, const std::filesystem::path& run, int64_t step) {
///   const std::filesystem::path folder = run / fsdp::step_folder_name(step);
///   fsdp::load_slices(folder, fsdp::read_manifest(folder),
///                     fsdp::state_slices(engine, optimizer, fsdp::SlicePurpose::kLoad));
///   optimizer.set_step_count(step);
/// }
/// \endcode

#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "checkpoint/state_slices.h"

namespace fsdp {

using checkpoint::load_slices;
using checkpoint::LoadOptions;
using checkpoint::Manifest;
using checkpoint::read_manifest;
using checkpoint::save_sharded;
using checkpoint::SavedCheckpoint;
using checkpoint::SaveRequest;
using checkpoint::SlicePurpose;
using checkpoint::state_slices;
using checkpoint::step_folder_name;

}  // namespace fsdp
