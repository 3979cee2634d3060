#pragma once

// The sizes of a model's units: what the cost of a step is computed from (shard/step_formula.h). They come
// from an engine (shard/engine_sizes.h), or, before there is one, from the choice of the units and the
// arithmetic of the layout. The latter needs shapes only, so a model of which there is no more than an
// outline is planned for any world without memory and without libtorch.

#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "comm/mesh_shape.h"
#include "nn/model_outline.h"
#include "shard/group_sizes.h"
#include "shard/options.h"
#include "shard/unit_choice.h"
#include "shard/unit_layout.h"
#include "shard/unit_options.h"
#include "util/dtype.h"

namespace fsdp::shard {

/// One parameter of a unit.
struct ParameterSizes {
  std::string name;
  std::vector<int64_t> shape;
  int64_t shard_numel = 0;  ///< elements of the unit's first rank, which has the most of the unit

  bool operator==(const ParameterSizes&) const = default;
};

/// One unit as one rank has it. Elements, unless the name says bytes.
struct UnitSizes {
  std::string name;
  int64_t numel = 0;            ///< parameters, without padding
  int64_t shard_numel = 0;      ///< this rank's part, with padding
  int64_t gathered_numel = 0;   ///< what an all-gather gives and a reduce-scatter takes: all ranks' shards
  int64_t unsharded_numel = 0;  ///< the buffer that the parameters are views of
  c10::ScalarType param_dtype = c10::ScalarType::Float;
  c10::ScalarType reduce_dtype = c10::ScalarType::Float;
  GroupSizes groups;
  std::vector<ParameterSizes> parameters;

  bool gathers_in_place = true;  ///< what is gathered is the unsharded buffer, see UnitLayout
  bool is_root = false;          ///< lives as the root does, see Engine::is_root()
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

  int64_t param_element() const { return util::element_size(param_dtype); }
  int64_t reduce_element() const { return util::element_size(reduce_dtype); }
};

/// What unit_sizes() of the engine would be that fully_shard() makes of such a model, before its first pass.
/// Throws Error(kUsage) as fully_shard() does. Options that need modules (units, wrap_policy) are not looked
/// at: `decisions` stand for them.
std::vector<UnitSizes> unit_sizes(const nn::ModelOutline& model, const ShardOptions& options,
                                  const comm::MeshShape& mesh, const UnitDecisions& decisions = {});

/// Those that a unit has from its options and its layout.
void take_options(const UnitOptions& options, UnitSizes& sizes);
void take_layout(const UnitLayout& layout, UnitSizes& sizes);

}  // namespace fsdp::shard
