#pragma once

/// \file
/// Sharded checkpoints: every rank writes its own file, and the manifest with the hashes is written last.
/// They can be loaded with another number of ranks, wrap policy or strategy. `fsdp-ckpt` consolidates,
/// converts and verifies them.
///
/// Collective: save_sharded(). load_slices() and read_manifest() are not.
///
/// Errors: Error(kCheckpoint) for checkpoints that are missing, damaged or do not fit, Error(kIo) for
/// failures of the disk. A save that fails throws on every rank and leaves no checkpoint.
///
/// Lifetime: slices are views of the live shards and optimizer states, so loading into slices restores these.
///
/// \code{.cpp}
/// void save(fsdp::Engine& engine, fsdp::Optimizer& optimizer, const std::filesystem::path& run,
///           int64_t step) {
///   fsdp::save_sharded({.root = run, .step = step, .layout = engine.options().layout.name()},
///                      fsdp::state_slices(engine, optimizer, fsdp::SlicePurpose::kSave),
///                      engine.communicator());
/// }
/// void load(fsdp::Engine& engine, fsdp::Optimizer& optimizer, const std::filesystem::path& run,
///           int64_t step) {
///   const std::filesystem::path folder = run / fsdp::step_folder_name(step);
///   fsdp::load_slices(folder, fsdp::read_manifest(folder),
///                     fsdp::state_slices(engine, optimizer, fsdp::SlicePurpose::kLoad));
///   optimizer.set_step_count(step);
/// }
/// \endcode

#include "state/checkpoint/load.h"
#include "state/checkpoint/save.h"
#include "state/checkpoint/state_slices.h"

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
