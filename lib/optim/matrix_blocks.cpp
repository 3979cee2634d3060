#include "optim/matrix_blocks.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "optim/optimizer.h"
#include "util/parallel.h"

namespace fsdp::optim {
namespace {

double square(float x) { return static_cast<double>(x) * x; }

/// In several sums side by side, which need not wait for each other.
double sum_of_squares(const float* x, int64_t n) {
  constexpr int64_t kSums = 8;
  double sums[kSums] = {};
  const int64_t whole = n - n % kSums;
  for (int64_t i = 0; i < whole; i += kSums) {
    for (int64_t k = 0; k < kSums; ++k) sums[k] += square(x[i + k]);
  }
  double sum = 0;
  for (double part : sums) sum += part;
  for (int64_t i = whole; i < n; ++i) sum += square(x[i]);
  return sum;
}

void add_squares_on_cpu(const at::Tensor& block, double* row_sums, double* column_sums) {
  const int64_t rows = block.size(0), columns = block.size(1);
  const float* x = block.const_data_ptr<float>();
  util::parallel_for(0, rows, std::max<int64_t>(1, kGrain / columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      row_sums[row] += sum_of_squares(x + row * columns, columns);
    }
  });
  util::parallel_for(0, columns, std::max<int64_t>(1, kGrain / rows), [&](int64_t begin, int64_t end) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = begin; column < end; ++column) {
        column_sums[column] += square(x[row * columns + column]);
      }
    }
  });
}

}  // namespace

std::vector<MatrixBlock> blocks_of(const util::ColumnRange& part, int64_t columns) {
  if (part.numel() == 0) return {};
  if (part.rows > 1) return {{.rows = part.rows, .column = part.begin, .columns = part.length()}};
  std::vector<MatrixBlock> blocks;
  for (int64_t at = part.begin; at < part.end;) {
    const int64_t row = at / columns, column = at % columns, left = part.end - at;
    const bool whole_rows = column == 0 && left >= columns;
    const int64_t rows = whole_rows ? left / columns : 1;
    const int64_t length = whole_rows ? columns : std::min(columns - column, left);
    blocks.push_back({row, rows, column, length, at - part.begin});
    at += rows * length;
  }
  return blocks;
}

void add_squares(const at::Tensor& block, double* row_sums, double* column_sums) {
  if (block.is_cpu()) return add_squares_on_cpu(block, row_sums, column_sums);
  const at::Tensor squares = block.square();
  const auto add = [&](int64_t dimension, double* sums) {
    const at::Tensor more = squares.sum(dimension, /*keepdim=*/false, at::kDouble).cpu();
    for (int64_t i = 0; i < more.numel(); ++i) sums[i] += more.const_data_ptr<double>()[i];
  };
  add(1, row_sums);
  add(0, column_sums);
}

}  // namespace fsdp::optim
