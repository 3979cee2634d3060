#include "state/optim/matrix_blocks.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "base/tensor/parallel.h"
#include "state/optim/optimizer.h"

namespace fsdp::optim {
namespace {

double square(float x) { return static_cast<double>(x) * x; }

/// Adds up several sums side by side, because they do not depend on each other.
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
  const int64_t rows = block.size(0), columns = block.size(1), stride = block.stride(0);
  const float* x = block.const_data_ptr<float>();
  util::parallel_for(0, rows, std::max<int64_t>(1, kGrain / columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      row_sums[row] += sum_of_squares(x + row * stride, columns);
    }
  });
  util::parallel_for(0, columns, std::max<int64_t>(1, kGrain / rows), [&](int64_t begin, int64_t end) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = begin; column < end; ++column) {
        column_sums[column] += square(x[row * stride + column]);
      }
    }
  });
}

}  // namespace

std::vector<MatrixBlock> blocks_of(const std::vector<util::Rectangle>& parts, int64_t rows, int64_t columns) {
  std::vector<MatrixBlock> blocks;
  int64_t offset = 0;
  for (const util::Rectangle& part : parts) {
    if (part.rows <= rows) {
      int64_t first = offset;
      for (const auto& block : util::compose(rows * columns, part, {0, columns, rows})) {
        if (block.numel() == 0) continue;
        blocks.push_back({block.row_begin, block.height(), block.begin, block.length(), first});
        first += block.numel();
      }
    } else if (part.numel() > 0) {
      const int64_t pieces = part.rows / rows;  // rows of the view that make up a row of the matrix
      for (int64_t piece = 0; piece < pieces; ++piece) {
        const auto rows_before = [&](int64_t end) { return (end - piece + pieces - 1) / pieces; };
        const int64_t row = rows_before(part.row_begin), count = rows_before(part.row_end) - row;
        if (count <= 0) continue;
        blocks.push_back({.row = row,
                          .rows = count,
                          .column = piece * (columns / pieces) + part.begin,
                          .columns = part.length(),
                          .offset = offset + (row * pieces + piece - part.row_begin) * part.length(),
                          .stride = pieces * part.length()});
      }
    }
    offset += part.numel();
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
