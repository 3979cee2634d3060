// The bytes of quantised types: bit by bit those of gguf-py, by committed hashes and, where the Python in
// FSDP_TEST_PYTHON has it, by gguf.quants itself.

#include "state/gguf_export/quantise.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/dtype/dtype.h"
#include "state/gguf/gguf_fixtures.h"
#include "state/gguf_export/writer.h"
#include "state/manifest/digest.h"

namespace fsdp::gguf {
namespace {

using namespace fsdp::testing;
using ::testing::HasSubstr;

/// 64 blocks of random numbers of several magnitudes, and blocks with ties, zeros, tiny and large numbers.
at::Tensor sample() {
  std::vector<float> values;
  uint64_t state = 42;
  for (int i = 0; i < 64 * 32; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    const float unit = static_cast<float>(state >> 40) * 0x1p-23F - 1;
    values.push_back(std::ldexp(unit, i / 32 % 24 - 12));
  }
  const auto block = [&](auto value_of) {
    for (int i = 0; i < 32; ++i) values.push_back(value_of(i));
  };
  block([](int) { return 0.0F; });
  block([](int i) { return i % 2 == 0 ? 1.0F : -1.0F; });
  block([](int i) { return i % 2 == 0 ? -1.0F : 1.0F; });
  block([](int i) { return static_cast<float>(i) - 16; });
  block([](int i) { return (static_cast<float>(i) - 15.5F) / 127; });
  block([](int i) { return std::ldexp(static_cast<float>(i), -130); });
  block([](int i) { return static_cast<float>(i * i) * 65; });
  return at::tensor(values);
}

std::string bytes_in(const at::Tensor& values, TensorType type) {
  const at::Tensor bytes = encoded(values, type, "sample");
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel())};
}

TEST(Quantised, HasTheBytesThatGgufPyGave) {
  EXPECT_EQ(checkpoint::xxh3_64_of(bytes_in(sample(), TensorType::kQ8_0)), "d9f229c1cd20b902");
  EXPECT_EQ(checkpoint::xxh3_64_of(bytes_in(sample(), TensorType::kQ4_0)), "35734bf0da850454");
  EXPECT_EQ(checkpoint::xxh3_64_of(bytes_in(sample(), TensorType::kBF16)), "fdad774e544077ab");
}

TEST(Quantised, HasTheBytesThatGgufPyGives) {
  const std::string python = python_with_gguf();
  if (python.empty()) GTEST_SKIP() << "set FSDP_TEST_PYTHON to a Python that has gguf";
  at::manual_seed(1);
  const at::Tensor values = at::cat({sample(), at::randn({100'000 * 32})});
  const std::string text(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
  for (const TensorType type : {TensorType::kQ8_0, TensorType::kQ4_0, TensorType::kBF16}) {
    EXPECT_TRUE(llama_cpp(python, {"quantise", util::name_of(type)}, text) == bytes_in(values, type))
        << util::name_of(type);
  }
}

TEST(Quantised, ComesBackWithinHalfAStep) {
  const at::Tensor values = sample().view({-1, 32});
  TemporaryFolder folder;
  for (const auto& [type, steps] : {std::pair(TensorType::kQ8_0, 127.0), {TensorType::kQ4_0, 8.0}}) {
    Writer writer(folder / "x.gguf", {}, {{.name = "x", .shape = values.sizes().vec(), .type = type}});
    const std::string bytes = bytes_in(values.view({-1}), type);
    writer.append(bytes.data(), static_cast<int64_t>(bytes.size()));
    writer.finish();
    const at::Tensor back = dequantised(Reader(folder / "x.gguf"), "x");
    const at::Tensor largest = std::get<0>(values.abs().max(1, true));
    // q4_0 has 7 steps only on the side of the other sign; the scale is rounded to float16, and tiny to 0.
    const double step = type == TensorType::kQ4_0 ? 1.01 : 0.505;
    EXPECT_TRUE(
        ((values - back).abs() <= largest * (step / steps + 6e-4 * steps / 8) + 1e-7).all().item<bool>())
        << util::name_of(type);
  }
}

TEST(Quantised, RefusesWhatItsTypeCannotHold) {
  for (const float wrong :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    at::Tensor values = at::ones({32});
    values[5] = wrong;
    for (const TensorType type : {TensorType::kQ8_0, TensorType::kQ4_0, TensorType::kF16}) {
      auto [kind, text] = error_of([&] { encoded(values, type, "the weight w"); });
      EXPECT_EQ(kind, ErrorKind::kCheckpoint);
      EXPECT_THAT(text, HasSubstr("the weight w has values that " + util::name_of(type) + " cannot hold"));
    }
    EXPECT_NO_THROW(encoded(values, TensorType::kBF16, "w"));
  }
  EXPECT_THAT(error_of([&] { encoded(at::full({1}, 70000.0F), TensorType::kF16, "w"); }).second,
              HasSubstr("choose the type bf16 or f32"));
}

TEST(Quantised, ValuesBeyondFloat16AreRefusedOrSaturated) {
  const at::Tensor values = at::tensor({1.0F, -1e6F}).repeat({16});
  const auto refused = [&](TensorType type) {
    return error_of([&] { encoded(values * 1e3, type, "the weight w"); });
  };
  for (const TensorType type : {TensorType::kF16, TensorType::kQ8_0, TensorType::kQ4_0}) {
    EXPECT_EQ(refused(type).first, ErrorKind::kCheckpoint);
    EXPECT_NE(refused(type).second.find("the weight w"), std::string::npos);
  }
  const at::Tensor half =
      encoded(values, TensorType::kF16, "the weight w", /*saturate=*/true).view(at::kHalf);
  EXPECT_EQ(half[1].item<float>(), -65504);
  EXPECT_EQ(half[2].item<float>(), 1);
}

}  // namespace
}  // namespace fsdp::gguf
