#include "state/convert/diff.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/dtype/dtype.h"
#include "base/util/error.h"
#include "base/util/shape.h"
#include "base/util/text.h"
#include "state/description/described_model.h"
#include "state/manifest/manifest.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr int64_t kSliceElements = int64_t{1} << 20;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Adds the differences of `count` elements to the sums. Wide holds every value of Element exactly.
template <typename Element, typename Wide>
void compare_elements(const Element* a, const Element* b, int64_t count, double tolerance,
                      TensorDifference& sums) {
  for (int64_t i = 0; i < count; ++i) {
    const auto x = static_cast<Wide>(a[i]), y = static_cast<Wide>(b[i]);
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    double absolute = kInfinity, relative = kInfinity;
    if (std::isfinite(x) && std::isfinite(y)) {
      absolute = static_cast<double>(std::abs(x - y));
      const Wide scale = std::max(std::abs(x), std::abs(y));
      // Divides first if the difference of large values overflows.
      relative = std::isfinite(absolute) ? static_cast<double>(std::abs(x - y) / scale)
                                         : static_cast<double>(std::abs(x / scale - y / scale));
    }
    sums.max_absolute_difference = std::max(sums.max_absolute_difference, absolute);
    sums.max_relative_difference = std::max(sums.max_relative_difference, relative);
    if (absolute > tolerance) ++sums.differing;
  }
}

class Comparison {
 public:
  Comparison(const Weights& a, const Weights& b, double tolerance) : a_(a), b_(b), tolerance_(tolerance) {}

  /// Compares the values of a tensor that has the same shape on both sides.
  void run(TensorDifference& sums, util::ByteCounter& counter) const {
    const std::string& name = sums.a.name;
    const int64_t numel = a_.numel(name), itemsize = static_cast<int64_t>(c10::elementSize(sums.a.dtype));
    const bool same_type = sums.a.dtype == sums.b.dtype;
    const at::ScalarType read_as = same_type                           ? sums.a.dtype
                                   : c10::isFloatingType(sums.a.dtype) ? at::kDouble
                                                                       : at::kLong;
    for (int64_t at = 0; at < numel; at += kSliceElements) {
      const int64_t count = std::min(kSliceElements, numel - at);
      at::Tensor from_a = slice(read_a_, count, read_as), from_b = slice(read_b_, count, read_as);
      a_.read_range_into(name, at, from_a);
      b_.read_range_into(name, at, from_b);
      counter.add(count * itemsize);
      if (same_type && std::memcmp(from_a.const_data_ptr(), from_b.const_data_ptr(), from_a.nbytes()) == 0) {
        continue;
      }
      if (read_as == at::kLong) {
        compare_elements<int64_t, long double>(from_a.const_data_ptr<int64_t>(),
                                               from_b.const_data_ptr<int64_t>(), count, tolerance_, sums);
      } else {
        at::Tensor wide_a = slice(wide_a_, count, at::kDouble), wide_b = slice(wide_b_, count, at::kDouble);
        wide_a.copy_(from_a);
        wide_b.copy_(from_b);
        compare_elements<double, double>(wide_a.const_data_ptr<double>(), wide_b.const_data_ptr<double>(),
                                         count, tolerance_, sums);
      }
    }
  }

 private:
  /// Buffers that are allocated once (see Weights::SliceScratch).
  static at::Tensor scratch() {
    return at::empty({kSliceElements * static_cast<int64_t>(sizeof(double))},
                     at::TensorOptions().dtype(at::kByte));
  }
  static at::Tensor slice(const at::Tensor& memory, int64_t count, at::ScalarType dtype) {
    return memory.narrow(0, 0, count * static_cast<int64_t>(c10::elementSize(dtype))).view(dtype);
  }

  const Weights &a_, &b_;
  double tolerance_;
  at::Tensor read_a_ = scratch(), read_b_ = scratch(), wide_a_ = scratch(), wide_b_ = scratch();
};

json number(double value) { return std::isfinite(value) ? json(value) : json("inf"); }

json info_as_json(const TensorInfo& info) {
  return {{"shape", info.shape}, {"dtype", util::dtype_name(info.dtype)}};
}

}  // namespace

Difference diff(const fs::path& path_a, const fs::path& path_b, const DiffOptions& options) {
  const bool checkpoints =
      format_of(path_a) == WeightsFormat::kCheckpoint && format_of(path_b) == WeightsFormat::kCheckpoint;
  const Weights a = checkpoints ? open_state(path_a) : open_weights(path_a);
  const Weights b = checkpoints ? open_state(path_b) : open_weights(path_b);

  Difference difference;
  for (const std::string& name : b.names()) {
    if (!a.contains(name)) difference.only_in_b.push_back(name);
  }
  std::vector<std::string> common;
  int64_t total_bytes = 0;
  for (const std::string& name : a.names()) {
    if (!b.contains(name)) {
      difference.only_in_a.push_back(name);
      continue;
    }
    common.push_back(name);
    if (a.shape(name) == b.shape(name)) total_bytes += bytes_of(a.info(name));
  }
  util::ByteCounter counter(options.progress, "comparing", total_bytes);
  const Comparison comparison(a, b, options.tolerance.value_or(0.0));
  for (const std::string& name : common) {
    TensorDifference found{.a = a.info(name), .b = b.info(name)};
    found.a.name = found.b.name = name;
    const bool same_type = found.a.dtype == found.b.dtype, same_shape = found.a.shape == found.b.shape;
    const bool comparable = c10::isFloatingType(found.a.dtype) == c10::isFloatingType(found.b.dtype) &&
                            (same_type || (found.a.dtype != at::kBool && found.b.dtype != at::kBool));
    found.compared = same_shape && comparable;
    if (found.compared) comparison.run(found, counter);
    if (found.compared && found.differing == 0 && (same_type || options.tolerance)) {
      ++difference.equal_tensors;
    } else {
      difference.tensors.push_back(std::move(found));
    }
  }
  return difference;
}

json diff_as_json(const Difference& difference) {
  json different = json::array();
  for (const TensorDifference& tensor : difference.tensors) {
    json entry{{"name", tensor.a.name}, {"a", info_as_json(tensor.a)}, {"b", info_as_json(tensor.b)}};
    entry["differing"] = tensor.compared ? json(tensor.differing) : json();
    entry["max_absolute_difference"] = tensor.compared ? number(tensor.max_absolute_difference) : json();
    entry["max_relative_difference"] = tensor.compared ? number(tensor.max_relative_difference) : json();
    different.push_back(std::move(entry));
  }
  return {{"equal", difference.empty()},
          {"equal_tensors", difference.equal_tensors},
          {"only_in_a", difference.only_in_a},
          {"only_in_b", difference.only_in_b},
          {"different", std::move(different)}};
}

std::string diff_as_text(const Difference& difference) {
  std::string text;
  for (const std::string& name : difference.only_in_a) text += concat("only in the first: ", name, "\n");
  for (const std::string& name : difference.only_in_b) text += concat("only in the second: ", name, "\n");
  for (const TensorDifference& tensor : difference.tensors) {
    text += tensor.a.name + ":";
    if (tensor.a.shape != tensor.b.shape) {
      text += concat(" shape ", util::shape_text(tensor.a.shape), " and ", util::shape_text(tensor.b.shape));
    }
    if (tensor.a.dtype != tensor.b.dtype) {
      text += concat(" type ", util::dtype_name(tensor.a.dtype), " and ", util::dtype_name(tensor.b.dtype));
    }
    if (tensor.differing > 0) {
      text += concat(" ", tensor.differing, " elements differ, by at most ",
                     util::printed("%.3g (relative %.3g)", tensor.max_absolute_difference,
                                   tensor.max_relative_difference));
    } else if (tensor.compared) {
      text += " the values are equal";
    }
    text += "\n";
  }
  text += difference.empty() ? "equal: " : "different: ";
  return text + concat(difference.equal_tensors, " tensors are equal, ", difference.tensors.size(),
                       " differ, ", difference.only_in_a.size() + difference.only_in_b.size(),
                       " are on one side only\n");
}

}  // namespace fsdp::checkpoint
