#pragma once

#include <cstdint>
#include <memory>

#include "state/weights/weights.h"

namespace fsdp::checkpoint {

/// `stored`, a floating-point matrix of `source`, with more rows, `rows` in all. Each new row is the mean of
/// the stored ones, rounded to their type. The first read of a new row reads all stored rows once. Sums are
/// made row by row in double precision, so that the mean has the same bits wherever it is computed.
std::shared_ptr<const TensorSource> with_mean_rows(std::shared_ptr<const TensorSource> source,
                                                   const TensorInfo& stored, int64_t rows);

}  // namespace fsdp::checkpoint
