#pragma once

// Copies named ranges of tensors to this rank's own ranges, for state dicts and optimizer states.

#include <map>
#include <string>
#include <vector>

#include "shard/engine/tensor_slice.h"

namespace fsdp::shard {

/// This rank's ranges, which a load writes to, and the names by which tensors may be given.
struct LoadPlaces {
  std::vector<TensorSlice> ranges;
  /// Index into `ranges` of each tensor's first range; its other ranges follow under the same name. Tied
  /// tensors have several names.
  std::map<std::string, size_t> by_name;
};

/// All errors of a load, to be reported together.
struct Misfits {
  std::vector<std::string> missing, unexpected, misshapen;

  bool any() const { return !missing.empty() || !unexpected.empty() || !misshapen.empty(); }
  /// Returns "missing bias; misshapen weight ([9] instead of [3, 3])".
  std::string shown() const;
};

/// Describes the fault of a tensor. Empty if it has `numel` elements of a floating type, or of the type
/// `expected`.
std::string fault_of(const at::Tensor& tensor, int64_t numel, at::ScalarType expected = at::kFloat);

/// The slices of each place, which were found by name.
struct MatchedSlices {
  std::vector<std::vector<const TensorSlice*>> slices;
  Misfits misfits;
};

/// Finds the slices of each place. A tensor is missing unless its slices cover this rank's range. With
/// `whole`, a tensor without slices is missing even where that range is empty. The slices must outlive the
/// result.
MatchedSlices match_slices(const LoadPlaces& places, const std::vector<TensorSlice>& slices, bool whole);

/// Copies the elements that the place and the slices have in common. The slices are not coded.
void copy_slices(const TensorSlice& place, const std::vector<const TensorSlice*>& slices);
void copy_slices(const LoadPlaces& places, const MatchedSlices& matched);

/// Returns a tensor as one slice, which has no elements if the tensor is undefined.
TensorSlice whole_slice(const std::string& name, const at::Tensor& tensor);

}  // namespace fsdp::shard
