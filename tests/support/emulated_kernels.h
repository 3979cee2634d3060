#pragma once

// Memory for kernels that tests run with support/cuda_emulator.h, and the ways to look at what they did.

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "model/kernels/element.h"
#include "support/cuda_emulator.h"

namespace fsdp::kernels::cuda {

/// A tensor's values in memory whose neighbourhood is watched. They lie `shift` elements behind an address
/// that is aligned to 64 bytes.
class Buffer {
 public:
  explicit Buffer(const at::Tensor& values, int64_t shift = 0)
      : memory_(at::empty({kGuard + shift + values.numel() + kGuard}, values.options())),
        values_(memory_.narrow(0, kGuard + shift, values.numel()).view(values.sizes())) {
    memory_.fill_(kGuardValue);
    values_.copy_(values);
  }
  /// Not initialised: NaN.
  Buffer(at::IntArrayRef shape, at::ScalarType type, int64_t shift = 0)
      : Buffer(at::full(shape, NAN, at::TensorOptions().dtype(type)), shift) {}

  void* data() const { return values_.data_ptr(); }
  template <typename T>
  T* data() const {
    return values_.data_ptr<T>();
  }
  const at::Tensor& values() const { return values_; }
  at::Tensor in_double() const { return values_.to(at::kDouble); }

  bool is_intact_around() const {
    const int64_t begin = values_.storage_offset(), end = begin + values_.numel();
    auto untouched = [&](int64_t first, int64_t last) {
      return memory_.narrow(0, first, last - first).eq(kGuardValue).all().item<bool>();
    };
    return untouched(0, begin) && untouched(end, memory_.numel());
  }

 private:
  static constexpr int64_t kGuard = 64;
  static constexpr double kGuardValue = -77;
  at::Tensor memory_, values_;
};

inline bool have_equal_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         (a.numel() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0);
}

/// Runs the kernels under every schedule, from the same beginnings of `outputs`, which must come out the
/// same.
inline void run_under_all_schedules(const std::vector<Buffer*>& outputs,
                                    const std::function<void(const EmulatedLaunch&)>& kernels) {
  std::vector<at::Tensor> before, first;
  for (const Buffer* output : outputs) before.push_back(output->values().clone());
  for (Schedule schedule : {Schedule::kAscending, Schedule::kDescending, Schedule::kShuffled}) {
    for (size_t i = 0; i < outputs.size(); ++i) outputs[i]->values().copy_(before[i]);
    kernels(EmulatedLaunch(schedule));
    for (size_t i = 0; i < outputs.size(); ++i) {
      EXPECT_TRUE(outputs[i]->is_intact_around()) << "output " << i;
      if (schedule == Schedule::kAscending) first.push_back(outputs[i]->values().clone());
      EXPECT_TRUE(have_equal_bits(outputs[i]->values(), first[i]))
          << "output " << i << " depends on the order of threads";
    }
  }
}

/// Kernels of one element type.
class OfType : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { at::manual_seed(11); }
  static at::ScalarType type() { return GetParam(); }
  static Element element() {
    return type() == at::kFloat ? Element::kFloat : type() == at::kHalf ? Element::kHalf : Element::kBFloat16;
  }
  /// Elements that are loaded at once.
  static int64_t pack() { return type() == at::kFloat ? 4 : 8; }
  static at::Tensor random(at::IntArrayRef shape) { return at::randn(shape).to(type()); }

  /// body(T()) for the type's T.
  template <typename Body>
  static void with_type(const Body& body) {
    with_element(element(), body);
  }

  /// Of results of the type, or in fp32; the largest difference as a share of the largest value.
  static void expect_near(const at::Tensor& found, const at::Tensor& expected, const char* what,
                          double tolerance = 0) {
    if (tolerance == 0) tolerance = found.scalar_type() == at::kFloat ? 4e-6 : 8e-3;
    ASSERT_EQ(found.sizes(), expected.sizes()) << what;
    if (found.numel() == 0) return;
    const at::Tensor difference = (found.to(at::kDouble) - expected.to(at::kDouble)).abs();
    const double largest = expected.to(at::kDouble).abs().max().item<double>();
    // Not EXPECT_LE: NaN is to fail.
    EXPECT_TRUE(difference.max().item<double>() <= tolerance * (largest + 1e-3))
        << what << ": " << difference.max().item<double>() << " of " << largest;
  }
};

inline std::string name_of_type(const ::testing::TestParamInfo<at::ScalarType>& info) {
  return c10::toString(info.param);
}

}  // namespace fsdp::kernels::cuda
