#include "tools/plan/optimizer_memory.h"

#include <algorithm>

#include "base/tensor/staged_tensors.h"
#include "shard/state/matrix_exchange.h"
#include "state/groups/parameter_groups.h"

namespace fsdp::plan {

using shard::UnitSizes;

namespace {

/// The most temporaries of a range's size at once in the composed arithmetic of optimizers (lib/state/optim).
int64_t composed_temporaries(const optim::OptimizerOptions& options) {
  bool decays_in_gradient = optim::weight_decay_of(options) != 0;
  for (const optim::ParameterGroupOptions& group : options.groups) {
    decays_in_gradient = decays_in_gradient || group.weight_decay.value_or(0) != 0;
  }
  const int64_t decayed = decays_in_gradient ? 1 : 0;
  if (options.name == "sgd") return decayed + (options.nesterov ? 1 : 0);
  if (options.name == "adadelta") return decayed + 2;
  const bool is_decoupled = options.name == "adamw" || options.name == "lion" || options.name == "muon";
  return (is_decoupled ? 0 : decayed) + 1;
}

/// A matrix of a unit, which a rank of those that share the work on it computes
/// (shard/state/matrix_exchange.h).
struct Matrix {
  int64_t rows = 0, columns = 0;
  int64_t part = 0;  ///< elements that each rank of the axis model has; all, if there are no parts
  bool is_of_this_group = true;  ///< a rank of this one's group along the axis model computes it
  bool is_own = true;            ///< the first rank does
  int64_t numel() const { return rows * columns; }
  bool has_parts() const { return part < numel(); }
};

std::vector<Matrix> matrices_of(const optim::OptimizerOptions& options, const UnitSizes& unit) {
  if (!unit.has_trainable_parameters) return {};
  std::vector<Matrix> matrices;
  std::vector<std::vector<int64_t>> shapes;
  for (const shard::ParameterSizes& parameter : unit.parameters) {
    const std::vector<int64_t>& shape = parameter.shape;
    if (!optim::treatment_of(options, parameter.name, shape).matrix) continue;
    shapes.push_back(shape);
    matrices.push_back({.rows = shape[0], .columns = shape[1], .part = parameter.part_numel});
  }
  const int groups = unit.has_parts() ? unit.groups.parts() : unit.groups.replicas / unit.options.holders;
  const std::vector<int> owners = shard::share_matrices(shapes, groups * unit.model_ranks);
  for (size_t i = 0; i < matrices.size(); ++i) {
    matrices[i].is_of_this_group = owners[i] < unit.model_ranks;
    matrices[i].is_own = matrices[i].has_parts() ? owners[i] == 0 : matrices[i].is_of_this_group;
  }
  return matrices;
}

/// The lengths of the sums over the tensors of a unit that the optimizer needs.
std::vector<int64_t> sums_of(const optim::OptimizerOptions& options, const UnitSizes& unit) {
  std::vector<std::vector<int64_t>> shapes;
  for (const shard::ParameterSizes& parameter : unit.parameters) shapes.push_back(parameter.shape);
  return unit.has_trainable_parameters ? optim::sums_of_tensors(options, shapes) : std::vector<int64_t>();
}

/// Temporaries of muon for the matrices of a unit (shard/state/matrix_exchange.h, state/optim/muon.h).
int64_t matrix_temporaries(const optim::OptimizerOptions& options, const UnitSizes& unit) {
  const std::vector<Matrix> matrices = matrices_of(options, unit);
  if (matrices.empty()) return 0;
  int64_t most = 0;
  for (const Matrix& matrix : matrices) {
    const int64_t whole = matrix.numel(), least = std::min(matrix.rows, matrix.columns);
    const int64_t computed = matrix.is_own ? 2 * whole + least * least : 0;
    if (!matrix.has_parts()) {
      most = std::max(most, whole + computed);
    } else if (matrix.is_of_this_group) {  // the matrix is joined, beside its parts
      most = std::max(most,
                      matrix.part + whole + std::max(computed, unit.model_ranks * matrix.part + matrix.part));
    } else {
      most = std::max(most, matrix.part);
    }
  }
  const int64_t of_slice = unit.is_cut() && unit.has_slices() ? unit.slice_shard_numel() : 0;
  const int64_t gathered = unit.has_parts() ? unit.gathered_numel : 0;
  return 4 * (unit.shard_numel + gathered + std::max(most, of_slice));
}

/// How many states of 16 or 8 bits an update converts to fp32, piece by piece.
int64_t widened_states(const optim::OptimizerOptions& options) {
  const bool is_adam = options.name == "adamw" || options.name == "adam" || options.name == "muon";
  if (options.state_dtype == optim::StateType::kFloat32 || (is_adam && options.fused)) return 0;
  const auto kinds = optim::state_kinds(options);
  const auto of_elements = std::ranges::count_if(kinds, [](const optim::StateKind& kind) {
    return kind.type != optim::StateType::kFloat32 && kind.elements != optim::StateKind::Elements::kMatrices;
  });
  return static_cast<int64_t>(of_elements);
}

/// Whether the update reads gradients in 16 bits as they are, if weights are in fp32
/// (Optimizer::updates_in_one_pass()).
bool is_fused_adam(const optim::OptimizerOptions& options) {
  return options.fused && (options.name == "adamw" || options.name == "adam");
}

/// The most elements of a unit that are updated at once where they are not all updated at once.
int64_t largest_piece(const optim::OptimizerOptions& options, const UnitSizes& unit) {
  if (options.state_dtype == optim::StateType::kFloat32) return std::min(optim::kPiece, unit.shard_numel);
  int64_t most = 0;  // a part of a tensor, within which elements are rounded alike
  for (const shard::ParameterSizes& parameter : unit.parameters) {
    most = std::max(most, parameter.shard_numel);
  }
  return std::min(optim::kPiece, most);
}

}  // namespace

int64_t optimizer_state_bytes(const optim::OptimizerOptions& options, const Units& units) {
  int64_t bytes = 0;
  for (const optim::StateKind& kind : optim::state_kinds(options)) {
    for (const UnitSizes& unit : units) {
      if (!unit.has_trainable_parameters) continue;
      if (kind.is_flat()) {
        bytes += kind.bytes({}, unit.shard_numel);
        continue;
      }
      for (const shard::ParameterSizes& parameter : unit.parameters) {
        const optim::Treatment treatment = optim::treatment_of(options, parameter.name, parameter.shape);
        if (!kind.covers(treatment)) continue;
        bytes += kind.bytes(treatment, kind.is_whole() ? kind.numel(parameter.shape) : parameter.shard_numel);
      }
    }
  }
  return bytes;
}

shard::Traffic optimizer_traffic(const optim::OptimizerOptions& options, const Units& units) {
  shard::Traffic traffic;
  for (const UnitSizes& unit : units) {
    if (unit.groups.parts() > 1 || unit.groups.replicas > 1 || unit.model_ranks > 1) {
      for (int64_t sums : sums_of(options, unit)) {
        ++traffic.all_reduces;
        traffic.all_reduce_bytes += 8 * sums;
      }
    }
    const std::vector<Matrix> matrices = matrices_of(options, unit);
    if (matrices.empty()) continue;
    const auto exchange = [&traffic](int64_t bytes) {
      traffic +=
          {.all_gathers = 1, .all_gather_bytes = bytes, .reduce_scatters = 1, .reduce_scatter_bytes = bytes};
    };
    for (const Matrix& matrix : matrices) {
      if (matrix.has_parts() && matrix.is_of_this_group) exchange(4 * matrix.part);
    }
    if (unit.has_parts()) {
      if (unit.has_slices()) exchange(unit.shard_bytes_in_float32());
      if (unit.is_cut()) exchange(4 * unit.slice_shard_numel());
    } else if (unit.groups.replicas > 1) {
      ++traffic.all_reduces;
      traffic.all_reduce_bytes += unit.shard_bytes_in_float32();
    }
  }
  return traffic;
}

bool streams_states(const config::Config& config, const RecordedPass& pass) {
  return pass.on_device() && config.optimizer.offload == optim::OptimizerOffload::kStream;
}

int64_t streamed_states(const config::Config& config, const Units& units, const RecordedPass& pass) {
  if (!streams_states(config, pass)) return 0;
  optim::OptimizerOptions options = config.optimizer;
  options.ema_decay = 0;
  return optimizer_state_bytes(options, units);
}

int64_t staged_bytes(const config::Config& config, const UnitSizes& unit) {
  if (!unit.has_trainable_parameters || unit.shard_numel == 0) return 0;
  optim::OptimizerOptions options = config.optimizer;
  options.ema_decay = 0;
  const shard::StorageOptions& storage = unit.options.storage;
  double of_element = static_cast<double>(optimizer_state_bytes(options, {unit})) / unit.shard_numel;
  if (storage.cpu_offload) {
    of_element += static_cast<double>(unit.shard_bytes()) / unit.shard_numel;
    if (storage.keeps_low_precision_shard)
      of_element += static_cast<double>(unit.source_bytes()) / unit.shard_numel;
  }
  if (storage.move_grads_to_cpu)
    of_element += static_cast<double>(unit.shard_gradient_bytes()) / unit.shard_numel;
  // What is converted of the piece in use: its value, its gradient, and states.
  const bool is_rounded = storage.param_storage != c10::ScalarType::Float;
  const bool in_one_pass = is_fused_adam(options) && !is_rounded;
  const int64_t converted = (is_rounded ? 1 : 0) + (in_one_pass ? 0 : 2) + widened_states(options) +
                            (options.fused ? 0 : composed_temporaries(options));
  const int64_t piece = std::min(optim::kStreamedPiece, unit.shard_numel);
  return static_cast<int64_t>(
      (util::StagedTensors::kSets * of_element + 4.0 * static_cast<double>(converted)) *
      static_cast<double>(piece));
}

int64_t update_temporaries(const config::Config& config, const Units& units) {
  int64_t largest = 0, largest_low = 0, matrices = 0, directions = 0, at_once = 0, piece = 0, widened = 0;
  const int64_t states = widened_states(config.optimizer);
  for (const UnitSizes& unit : units) {
    if (!unit.has_trainable_parameters) continue;
    const shard::StorageOptions& storage = unit.options.storage;
    largest = std::max(largest, unit.shard_numel);
    const bool in_pieces = storage.param_storage != c10::ScalarType::Float;
    if (storage.keep_low_precision_grads && (in_pieces || !is_fused_adam(config.optimizer))) {
      largest_low = std::max(largest_low, unit.shard_numel);
    }
    const int64_t updated =
        in_pieces || states > 0 ? largest_piece(config.optimizer, unit) : unit.shard_numel;
    at_once = std::max(at_once, updated);
    widened = std::max(widened, states * updated);
    if (in_pieces) piece = std::max(piece, updated);
    matrices = std::max(matrices, matrix_temporaries(config.optimizer, unit));
    if (!sums_of(config.optimizer, unit).empty()) {
      directions = std::max(directions, unit.shard_bytes_in_float32());
    }
  }
  // For norms other than the 2-norm, libtorch's kernel makes a copy in double precision.
  int64_t norm = config.training.norm_type == 2 ? 0 : 8 * largest;
  const int64_t update = 4 * largest_low;
  if (directions > 0) return std::max(norm, update + directions + 4 * piece);
  const int64_t composed = config.optimizer.fused ? 0 : 4 * at_once * composed_temporaries(config.optimizer);
  return std::max(norm, update + std::max(4 * (piece + widened) + composed, matrices));
}

}  // namespace fsdp::plan
