#pragma once

// The parts of the table of row_kernels() (cuda/kernels.h), each from a file of its own, so that they compile
// side by side.

#include "kernels/kernel_table.h"

namespace fsdp::kernels::cuda {

template <typename T>
void put_rms_norm(RowKernels& table);
template <typename T>
void put_layer_norm(RowKernels& table);
template <typename T>
void put_activations(RowKernels& table);
template <typename T>
void put_losses(RowKernels& table);

}  // namespace fsdp::kernels::cuda
