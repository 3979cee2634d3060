#pragma once

// The types of HDF5 in which tensors are stored: the same bytes as in memory, so nothing is ever converted.

#include <c10/core/ScalarType.h>

#include "checkpoint/hdf5_handle.h"

namespace fsdp::checkpoint {

/// A copy of the stored type for `dtype`; an assertion for dtypes that the toolkit never stores. Hold the
/// lock.
Hdf5Id stored_type(c10::ScalarType dtype);

}  // namespace fsdp::checkpoint
