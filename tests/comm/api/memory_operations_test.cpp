#include "comm/api/memory_operations.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <bit>
#include <limits>

namespace fsdp::comm {
namespace {

at::Tensor numbers(int64_t numel, at::ScalarType dtype, int seed) {
  at::Tensor index = at::arange(numel, at::kDouble) + 1000.0 * seed;
  return (at::sin(index * 12.9898) * (seed % 2 == 0 ? 100.0 : 1.0)).to(dtype);
}

/// parts [begin, end) in pairs: as many as the largest power of two below their number, and the others.
at::Tensor sum_in_pairs(const std::vector<at::Tensor>& parts, size_t begin, size_t end) {
  if (end - begin == 1) return parts[begin];
  const size_t middle = begin + std::bit_floor(end - begin - 1);
  return sum_in_pairs(parts, begin, middle) + sum_in_pairs(parts, middle, end);
}

/// With libtorch's own operators, one part after another or, in fp32, in pairs.
at::Tensor expected_of(const std::vector<at::Tensor>& parts, ReduceOp op) {
  const at::ScalarType dtype = parts[0].scalar_type();
  if (dtype == at::kFloat && op == ReduceOp::kSum) return sum_in_pairs(parts, 0, parts.size());
  const at::ScalarType wide = sums_in_float(dtype) ? at::kFloat : dtype;
  at::Tensor result = parts[0].to(wide);
  for (size_t i = 1; i < parts.size(); ++i) {
    const at::Tensor next = parts[i].to(wide);
    result = op == ReduceOp::kSum ? (result + next).to(wide) : at::max(result, next);
  }
  return result.to(dtype);
}

at::Tensor reduced(const at::Tensor& out, const std::vector<at::Tensor>& parts, ReduceOp op) {
  std::vector<const void*> pointers;
  for (const at::Tensor& part : parts) pointers.push_back(part.data_ptr());
  reduce_in_rank_order(out.data_ptr(), pointers, out.numel(), out.scalar_type(), op);
  return out;
}

TEST(RankOrderSum, IsThatOfLibtorchForAllTypesAndLengths) {
  for (auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kInt, at::kShort,
                     at::kChar, at::kByte}) {
    for (int64_t numel : {0, 1, 7, 63, 64, 65, 255, 256, 1000, 1024, 5001}) {
      for (int count : {1, 2, 3, 4, 5, 7, 8}) {
        std::vector<at::Tensor> parts;
        for (int i = 0; i < count; ++i) parts.push_back(numbers(numel, dtype, i).abs());
        for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
          at::Tensor out = reduced(at::empty({numel}, parts[0].options()), parts, op);
          ASSERT_TRUE(at::equal(out, expected_of(parts, op)))
              << c10::toString(dtype) << ", " << numel << " elements of " << count << " parts";
        }
      }
    }
  }
}

TEST(RankOrderSum, OfOddAddressesIsTheSame) {
  for (auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    std::vector<at::Tensor> parts;
    for (int i = 0; i < 3; ++i) parts.push_back(numbers(2000, dtype, i).narrow(0, 1 + i, 1500));
    at::Tensor out = at::empty({1501}, dtype).narrow(0, 1, 1500);
    sum_in_rank_order(out, parts);
    EXPECT_TRUE(at::equal(out, expected_of(parts, ReduceOp::kSum))) << c10::toString(dtype);
  }
}

TEST(RankOrderSum, MayBeWrittenOverAnyPart) {
  for (auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    for (size_t place : {0, 1, 2}) {
      std::vector<at::Tensor> parts;
      for (int i = 0; i < 3; ++i) parts.push_back(numbers(3001, dtype, i));
      at::Tensor expected = expected_of(parts, ReduceOp::kSum);
      sum_in_rank_order(parts[place], parts);
      EXPECT_TRUE(at::equal(parts[place], expected)) << c10::toString(dtype) << ", part " << place;
    }
  }
}

TEST(RankOrderSum, KeepsWhatIsNotANumber) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    for (size_t place : {0, 1, 2}) {
      std::vector<at::Tensor> parts;
      for (int i = 0; i < 3; ++i) parts.push_back(numbers(100, dtype, i));
      parts[place][50].fill_(kNan);
      parts[place][51].fill_(kInfinity);
      for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
        at::Tensor out = reduced(at::empty({100}, dtype), parts, op).to(at::kDouble);
        EXPECT_TRUE(at::isnan(out[50]).item<bool>()) << c10::toString(dtype) << ", part " << place;
        EXPECT_EQ(out[51].item<double>(), kInfinity) << c10::toString(dtype) << ", part " << place;
        EXPECT_EQ(at::isnan(out).sum().item<int64_t>(), 1);
      }
    }
  }
}

TEST(RankOrderSum, OfBoolsIsWhetherAnyIsTrue) {
  std::vector<at::Tensor> parts{at::zeros({3}, at::kBool), at::zeros({3}, at::kBool)};
  parts[0][0].fill_(true);
  parts[1][0].fill_(true);
  parts[1][1].fill_(true);
  at::Tensor out = reduced(at::empty({3}, at::kBool), parts, ReduceOp::kSum);
  EXPECT_TRUE(at::equal(out.to(at::kByte), at::tensor({1, 1, 0}, at::kByte)));
}

}  // namespace
}  // namespace fsdp::comm
