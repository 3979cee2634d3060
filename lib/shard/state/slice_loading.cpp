#include "shard/state/slice_loading.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "base/util/error.h"
#include "base/util/rectangle.h"
#include "base/util/text.h"

namespace fsdp::shard {
namespace {

bool covers(const std::vector<const TensorSlice*>& slices, const TensorSlice& place) {
  std::vector<std::pair<int64_t, int64_t>> found;  // elements of the place
  const int64_t numel = c10::multiply_integers(place.shape);
  for (const TensorSlice* slice : slices) {
    util::for_each_overlap(numel, place.range, slice->range, [&found](const util::Overlap& overlap) {
      found.emplace_back(overlap.in_a, overlap.in_a + overlap.count);
    });
  }
  std::sort(found.begin(), found.end());
  int64_t covered = 0;
  for (const auto& [begin, end] : found) {
    if (begin <= covered) covered = std::max(covered, end);
  }
  return covered >= place.numel();
}

}  // namespace

std::string Misfits::shown() const {
  std::vector<std::string> found;
  const auto add = [&found](const std::vector<std::string>& names, const char* how) {
    if (!names.empty()) found.push_back(concat(how, " ", util::join(names, ", ")));
  };
  add(missing, "missing");
  add(unexpected, "unexpected");
  add(misshapen, "misshapen");
  return util::join(found, "; ");
}

std::string fault_of(const at::Tensor& tensor, int64_t numel, at::ScalarType expected) {
  if (!tensor.defined()) return "no tensor";
  if (tensor.scalar_type() != expected && !(tensor.is_floating_point() && c10::isFloatingType(expected))) {
    return c10::toString(tensor.scalar_type());
  }
  if (tensor.numel() != numel) return concat(tensor.numel(), " elements instead of ", numel);
  return "";
}

MatchedSlices match_slices(const LoadPlaces& places, const std::vector<TensorSlice>& slices, bool whole) {
  MatchedSlices matched;
  Misfits& misfits = matched.misfits;
  matched.slices.resize(places.ranges.size());
  std::vector<bool> is_misshapen(places.ranges.size(), false);
  for (const TensorSlice& slice : slices) {
    const auto found = places.by_name.find(slice.name);
    if (found == places.by_name.end()) {
      misfits.unexpected.push_back(slice.name);
      continue;
    }
    const TensorSlice& place = places.ranges[found->second];
    std::string fault = fault_of(slice.data, slice.numel(), place.dtype());
    if (fault.empty() && slice.shape != place.shape) {
      fault = concat(at::IntArrayRef(slice.shape), " instead of ", at::IntArrayRef(place.shape));
    }
    for (size_t i = found->second; i < places.ranges.size() && places.ranges[i].name == place.name; ++i) {
      matched.slices[i].push_back(&slice);
      if (!fault.empty()) is_misshapen[i] = true;
    }
    if (!fault.empty()) misfits.misshapen.push_back(concat(slice.name, " (", fault, ")"));
  }
  for (size_t i = 0; i < places.ranges.size(); ++i) {
    const bool is_there = is_misshapen[i] || (covers(matched.slices[i], places.ranges[i]) &&
                                              !(whole && matched.slices[i].empty()));
    const bool is_told = !misfits.missing.empty() && misfits.missing.back() == places.ranges[i].name;
    if (!is_there && !is_told) misfits.missing.push_back(places.ranges[i].name);
  }
  return matched;
}

void copy_slices(const TensorSlice& place, const std::vector<const TensorSlice*>& slices) {
  if (slices.empty()) return;
  at::NoGradGuard no_grad;
  // Codes of a block depend on all of its numbers.
  const at::Tensor to = place.coded ? kernels::decoded(*place.coded) : place.data;
  const int64_t numel = c10::multiply_integers(place.shape);
  for (const TensorSlice* slice : slices) {
    const at::Tensor from = slice->data.reshape({-1});
    util::for_each_overlap(numel, place.range, slice->range, [&](const util::Overlap& overlap) {
      to.narrow(0, overlap.in_a, overlap.count).copy_(from.narrow(0, overlap.in_b, overlap.count));
    });
  }
  if (place.coded) kernels::encode(to, *place.coded);
}

void copy_slices(const LoadPlaces& places, const MatchedSlices& matched) {
  for (size_t i = 0; i < matched.slices.size(); ++i) copy_slices(places.ranges[i], matched.slices[i]);
}

TensorSlice whole_slice(const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined()) return {.name = name, .shape = {}};
  return {name, tensor.sizes().vec(), {0, tensor.numel()}, tensor};
}

}  // namespace fsdp::shard
