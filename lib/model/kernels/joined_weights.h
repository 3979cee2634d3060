#pragma once

// Weights that lie one after another in memory, as they do in the unsharded buffer of a unit
// (shard/units/unit_layout.h), as one matrix.

#include <ATen/core/Tensor.h>

#include <optional>

#include "model/kernels/gradient_sink.h"

namespace fsdp::kernels {

/// Whether each part begins where the one before it ends.
bool lie_in_sequence(at::TensorList parts);

/// Joins consecutive parts. parts: [out_i, in] -> [sum of out_i, in]
at::Tensor joined(at::TensorList parts);

/// Returns the place for the gradients of all weights, of the first type that has a place; none if they have
/// no consecutive places of the same kind.
std::optional<GradientSink::SinkPlace> take_joined_place(
    at::TensorList weights, at::ScalarType type, std::optional<at::ScalarType> or_type = std::nullopt);

}  // namespace fsdp::kernels
