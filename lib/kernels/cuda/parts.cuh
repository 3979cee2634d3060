#pragma once

#include "kernels/cuda/thread_model.cuh"

namespace fsdp::kernels::cuda {

/// What a kernel is given whose blocks go through the rows of a part each (kernels/row_parts.h).
template <typename Rows>
struct RowsInParts {
  Rows rows;
  int64_t each;  ///< rows of a part

  FSDP_DEVICE int64_t begin() const { return block() * each; }
  FSDP_DEVICE int64_t end() const { return begin() + each < rows.rows ? begin() + each : rows.rows; }
};

}  // namespace fsdp::kernels::cuda
