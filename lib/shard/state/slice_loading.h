#pragma once

// How ranges of tensors, under names, reach this rank's own ranges; for state dicts and optimizer states.

#include <map>
#include <string>
#include <vector>

#include "shard/engine/tensor_slice.h"

namespace fsdp::shard {

/// This rank's ranges, which a load writes to, and the names by which tensors may be given.
struct LoadPlaces {
  std::vector<TensorSlice> ranges;
  /// Indices into `ranges`, of the tensor's first; the others, under the same name in `ranges`, follow. Tied
  /// tensors have several names.
  std::map<std::string, size_t> by_name;
};

/// All errors of a load, to be reported together.
struct Misfits {
  std::vector<std::string> missing, unexpected, misshapen;

  bool any() const { return !missing.empty() || !unexpected.empty() || !misshapen.empty(); }
  /// "missing bias; misshapen weight ([9] instead of [3, 3])"
  std::string shown() const;
};

/// Empty if the tensor has `numel` elements of a floating type, or of the type that is expected.
std::string fault_of(const at::Tensor& tensor, int64_t numel, at::ScalarType expected = at::kFloat);

/// Slices, found by name, for each place.
struct MatchedSlices {
  std::vector<std::vector<const TensorSlice*>> slices;
  Misfits misfits;
};

/// A tensor is missing unless its slices cover this rank's range and, with `whole`, if there is none, even
/// where that range is empty. The slices must outlive the result.
MatchedSlices match_slices(const LoadPlaces& places, const std::vector<TensorSlice>& slices, bool whole);

/// Copies the elements that the place and the slice have in common.
void copy_slice(const TensorSlice& place, const TensorSlice& slice);
void copy_slices(const LoadPlaces& places, const MatchedSlices& matched);

/// A tensor as one slice; of no elements if it is undefined.
TensorSlice whole_slice(const std::string& name, const at::Tensor& tensor);

}  // namespace fsdp::shard
