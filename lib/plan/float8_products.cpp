#include "plan/float8_products.h"

#include "plan/activation_parts.h"

namespace fsdp::plan {

void Float8Products::round(int64_t elements, int64_t orders) {
  if (shape_.float8_on_cpu) tape_.touch((kFloat + 1) * elements);  // scaled in fp32, and rounded
  tape_.take(orders * elements);
}

void Float8Products::touch_factors(int64_t rows, int64_t sum, int64_t columns) {
  if (shape_.float8_on_cpu) tape_.touch(kFloat * (rows * sum + columns * sum + rows * columns));
}

void Float8Products::multiply(int64_t rows, int64_t sum, int64_t columns) {
  touch_factors(rows, sum, columns);
  if (shape_.float8_on_cpu) tape_.touch((kFloat + shape_.element) * rows * columns);
  tape_.take(shape_.element * rows * columns);
}

void Float8Products::multiply_into_place(int64_t rows, int64_t sum, int64_t columns) {
  touch_factors(rows, sum, columns);
  // cuBLASLt writes to a place, but does not add to what is there.
  if (!shape_.float8_on_cpu && shape_.places_have_gradients) tape_.touch(kFloat * rows * columns);
}

void Float8Products::forward(int64_t in, const std::vector<int64_t>& outs) {
  const int64_t rows = shape_.count();
  int64_t results = 0;
  round(rows * in);
  for (int64_t out : outs) {
    round(in * out);
    multiply(rows, in, out);
    tape_.give(in * out);
    results += shape_.element * rows * out;
  }
  tape_.give(rows * in + results);
}

void Float8Products::backward(int64_t in, const std::vector<int64_t>& outs) {
  const int64_t rows = shape_.count(), dx = shape_.element * rows * in;
  for (size_t i = 0; i < outs.size(); ++i) {
    const int64_t out = outs[i];
    round(rows * out, 2);  // the gradient of the result, for both products
    round(in * out);
    multiply(rows, out, in);
    tape_.give(in * out);
    if (i == 0) {
      round(rows * in);
    } else {
      tape_.give(dx);  // added to the first
    }
    shape_.float8_accumulates ? multiply_into_place(out, rows, in) : multiply(out, rows, in);
    tape_.give(2 * rows * out);
  }
  tape_.give(rows * in);
}

}  // namespace fsdp::plan
