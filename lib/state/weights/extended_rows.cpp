#include "state/weights/extended_rows.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace fsdp::checkpoint {
namespace {

class ExtendedRows final : public TensorSource {
 public:
  ExtendedRows(std::shared_ptr<const TensorSource> source, const TensorInfo& stored, int64_t rows)
      : source_(std::move(source)), stored_(stored), rows_(rows) {}

  const std::filesystem::path& path() const override { return source_->path(); }

  std::vector<TensorInfo> infos() const override {
    return {{stored_.name, {rows_, stored_.shape[1]}, stored_.dtype}};
  }

  void read(const std::string& name, int64_t begin, int64_t end, void* out) const override {
    const int64_t columns = stored_.shape[1], of_stored = stored_.shape[0] * columns;
    if (begin < of_stored) source_->read(name, begin, std::min(end, of_stored), out);
    if (end <= of_stored) return;
    if (!mean_.defined()) mean_ = mean();
    const auto itemsize_bytes = static_cast<int64_t>(mean_.element_size());
    for (int64_t at = std::max(begin, of_stored), next = at; at < end; at = next) {
      const int64_t column = at % columns;
      next = std::min(end, at + columns - column);
      std::memcpy(static_cast<char*>(out) + (at - begin) * itemsize_bytes,
                  static_cast<const char*>(mean_.const_data_ptr()) + column * itemsize_bytes,
                  static_cast<size_t>((next - at) * itemsize_bytes));
    }
  }

 private:
  at::Tensor mean() const {
    const int64_t rows = stored_.shape[0], columns = stored_.shape[1];
    const int64_t row_bytes = columns * static_cast<int64_t>(c10::elementSize(stored_.dtype));
    const int64_t step = std::clamp<int64_t>(Weights::kSliceBytes / row_bytes, 1, rows);
    const at::Tensor slice = at::empty({step * columns}, at::TensorOptions(stored_.dtype));
    at::Tensor sum = at::zeros({columns}, at::TensorOptions(at::kDouble));
    double* sums = sum.mutable_data_ptr<double>();
    for (int64_t row = 0; row < rows; row += step) {
      const int64_t count = std::min(step, rows - row) * columns;
      source_->read(stored_.name, row * columns, row * columns + count, slice.mutable_data_ptr());
      const at::Tensor values = slice.narrow(0, 0, count).to(at::kDouble);
      const auto* value = values.const_data_ptr<double>();
      for (int64_t i = 0; i < count; i += columns) {
        for (int64_t column = 0; column < columns; ++column) sums[column] += value[i + column];
      }
    }
    return sum.div_(static_cast<double>(rows)).to(stored_.dtype);
  }

  std::shared_ptr<const TensorSource> source_;
  TensorInfo stored_;
  int64_t rows_;
  mutable at::Tensor mean_;
};

}  // namespace

std::shared_ptr<const TensorSource> with_mean_rows(std::shared_ptr<const TensorSource> source,
                                                   const TensorInfo& stored, int64_t rows) {
  return std::make_shared<ExtendedRows>(std::move(source), stored, rows);
}

}  // namespace fsdp::checkpoint
