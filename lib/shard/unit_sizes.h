#pragma once

// The sizes of a model's units: what the cost of a step is computed from (shard/step_formula.h). They come
// from an engine, or, before there is one, from the plan of the units and the arithmetic of the layout. The
// latter needs shapes only, so a model on the meta device can be planned for any world without memory.

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "comm/mesh_shape.h"
#include "nn/stage.h"
#include "shard/engine.h"
#include "shard/options.h"
#include "shard/process_groups.h"

namespace fsdp::shard {

/// One unit as one rank has it. Elements, unless the name says bytes.
struct UnitSizes {
  std::string name;
  int64_t numel = 0;            ///< parameters, without padding
  int64_t shard_numel = 0;      ///< this rank's part, with padding
  int64_t gathered_numel = 0;   ///< what an all-gather gives and a reduce-scatter takes: all ranks' shards
  int64_t unsharded_numel = 0;  ///< the buffer that the parameters are views of
  at::ScalarType param_dtype = at::kFloat;
  at::ScalarType reduce_dtype = at::kFloat;
  GroupSizes groups;

  bool gathers_in_place = true;       ///< what is gathered is the unsharded buffer, see UnitLayout
  bool is_root = false;               ///< lives as the root does, see Engine::is_root()
  bool reshard_after_forward = true;  ///< see UnitOptions
  bool has_trainable_parameters = true;
  bool shard_is_unsharded = false;      ///< see UnitStorage
  bool input_is_differentiable = true;  ///< see Engine

  /// Whether gathering it communicates.
  bool is_cut() const { return groups.shards > 1 && numel > 0; }

  int64_t shard_bytes() const { return shard_numel * 4; }  ///< master weights
  /// Of the unsharded buffer; 0 where the shard is the whole unit.
  int64_t unsharded_bytes() const { return shard_is_unsharded ? 0 : unsharded_numel * param_element(); }
  /// Of what exists beside that from the begin of a gather until it has been copied out.
  int64_t communication_bytes() const {
    return gathers_in_place || !is_cut() ? 0 : gathered_numel * param_element();
  }
  /// Of the buffer in which gradients are accumulated and from which they are reduced.
  int64_t gradient_bytes() const { return has_trainable_parameters ? gathered_numel * reduce_element() : 0; }
  /// This rank's payload of an all-gather and of a reduction of its shard.
  int64_t gather_payload_bytes() const { return shard_numel * param_element(); }
  int64_t reduce_payload_bytes() const { return shard_numel * reduce_element(); }

  bool operator==(const UnitSizes&) const = default;

  int64_t param_element() const { return static_cast<int64_t>(c10::elementSize(param_dtype)); }
  int64_t reduce_element() const { return static_cast<int64_t>(c10::elementSize(reduce_dtype)); }
};

/// In the order of Engine::units().
std::vector<UnitSizes> unit_sizes(const Engine& engine);

/// What unit_sizes() of the engine would be that fully_shard() makes of the model, before its first pass.
/// The model may lie on the meta device. Throws Error(kUsage) as fully_shard() does.
std::vector<UnitSizes> unit_sizes(nn::Stage& model, const ShardOptions& options, const comm::MeshShape& mesh);

}  // namespace fsdp::shard
