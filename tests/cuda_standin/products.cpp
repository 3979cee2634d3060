#include "products.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace standin {
namespace {

/// use(T()) for the type's T; false if there is none.
template <typename Use>
bool with_type(cudaDataType type, const Use& use) {
  switch (type) {
    case CUDA_R_64F:
      return use(double()), true;
    case CUDA_R_32F:
      return use(float()), true;
    case CUDA_R_16F:
      return use(c10::Half()), true;
    case CUDA_R_16BF:
      return use(c10::BFloat16()), true;
    case CUDA_R_8F_E4M3:
      return use(c10::Float8_e4m3fn()), true;
    case CUDA_R_8F_E5M2:
      return use(c10::Float8_e5m2()), true;
    default:
      return false;
  }
}

/// [rows, columns] of the given matrix of a batch, column by column.
bool read(const Operand& from, long long index, long long rows, long long columns, std::vector<double>& to) {
  if (from.data == nullptr) return false;
  to.resize(static_cast<size_t>(rows * columns));
  return with_type(from.type, [&]<typename T>(T) {
    const T* data = static_cast<const T*>(from.data) + index * from.stride;
    for (long long column = 0; column < columns; ++column) {
      for (long long row = 0; row < rows; ++row) {
        const long long at = from.is_transposed ? row * from.leading + column : column * from.leading + row;
        to[static_cast<size_t>(column * rows + row)] = static_cast<double>(data[at]);
      }
    }
  });
}

bool write(const Operand& to, long long index, long long rows, long long columns,
           const std::vector<double>& from) {
  return with_type(to.type, [&]<typename T>(T) {
    T* data = static_cast<T*>(to.data) + index * to.stride;
    for (long long column = 0; column < columns; ++column) {
      for (long long row = 0; row < rows; ++row) {
        data[column * to.leading + row] = static_cast<T>(from[static_cast<size_t>(column * rows + row)]);
      }
    }
  });
}

constexpr double kGeluFactor = 0.7978845608028654;  // the root of 2 / pi
double gelu_tanh(double x) { return std::tanh(kGeluFactor * (x + 0.044715 * x * x * x)); }
double gelu(double x) { return 0.5 * x * (1 + gelu_tanh(x)); }
double gelu_gradient(double x) {
  const double t = gelu_tanh(x);
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kGeluFactor * (1 + 3 * 0.044715 * x * x);
}

}  // namespace

bool Product::compute() const {
  std::vector<double> left, right, result, added;
  const auto scale_of = [&](const float* scales, long long at) {
    return scales == nullptr ? 1.0 : static_cast<double>(scales[scales_rows ? at : 0]);
  };
  for (long long i = 0; i < batch; ++i) {
    result.assign(static_cast<size_t>(m * n), 0);
    if (k > 0 && (!read(a, i, m, k, left) || !read(b, i, k, n, right))) return false;
    for (long long column = 0; column < n; ++column) {
      double* sums = result.data() + column * m;
      for (long long step = 0; step < k; ++step) {
        const double factor =
            alpha * scale_of(scale_b, column) * right[static_cast<size_t>(column * k + step)];
        const double* values = left.data() + step * m;
        for (long long row = 0; row < m; ++row) sums[row] += factor * values[row];
      }
      for (long long row = 0; row < m; ++row) sums[row] *= scale_of(scale_a, row);
    }
    const auto add = [&](double factor, long long columns) {  // of one column: to each
      for (size_t at = 0; at < result.size(); ++at) {
        result[at] += factor * added[at % static_cast<size_t>(m * columns)];
      }
    };
    if (beta != 0) {
      if (!read(c, i, m, n, added)) return false;
      add(beta, n);
    }
    if (bias.data != nullptr) {
      if (!read(bias, 0, m, 1, added)) return false;
      add(1, 1);
    }
    if (gelu_input_to.data != nullptr) {
      if (!write(gelu_input_to, i, m, n, result)) return false;
      for (double& x : result) x = gelu(x);
    }
    if (gelu_input.data != nullptr) {
      if (!read(gelu_input, i, m, n, added)) return false;
      for (size_t at = 0; at < result.size(); ++at) result[at] *= gelu_gradient(added[at]);
    }
    if (sums_of_a.data != nullptr) {
      std::vector<double> sums(static_cast<size_t>(m));
      for (size_t at = 0; at < left.size(); ++at) sums[at % sums.size()] += left[at];
      if (!write(sums_of_a, 0, m, 1, sums)) return false;
    }
    if (!write(d, i, m, n, result)) return false;
  }
  return true;
}

}  // namespace standin
