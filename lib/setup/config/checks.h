#pragma once

// Conditions on several keys together.

#include <string>
#include <vector>

#include "comm/options/mesh_shape.h"
#include "setup/config/config.h"

namespace fsdp::config {

struct Conflict {
  std::vector<std::string> keys;  ///< full names of the keys involved, the likeliest culprit first
  std::string message;            ///< the expected and the found, with the arithmetic
};

/// Returns every condition that the configuration breaks. Requires: each key is within its own limits.
std::vector<Conflict> find_conflicts(const Config& config);

/// Returns the broken conditions of training.objective.
std::vector<Conflict> find_conflicts_of_objective(const Config& config);

/// Returns the broken conditions of training.reproducible = "world_size".
std::vector<Conflict> find_conflicts_of_reproducible(const Config& config);

/// Returns the broken conditions of training.local_steps.
std::vector<Conflict> find_conflicts_of_local_steps(const Config& config);

/// Returns the rows that training.objective learns from.
data::PreferenceOptions rows_of_preferences(const Config& config);

/// Returns what is stored of a teacher for training.objective.
data::TeacherOptions stored_teacher_of(const Config& config);

/// Returns preference.reference, or the source that "auto" stands for.
nn::ReferenceSource reference_source(const Config& config);

/// The mesh of a run. Throws util::Error(kUsage) with the arithmetic unless the product of [mesh] is the
/// world size, where -1, at most once, is the quotient (comm::resolve_mesh()), and unless sequences divide
/// into the chunks of mesh.context.
comm::MeshShape check_world(const Config& config, int world_size);

}  // namespace fsdp::config
