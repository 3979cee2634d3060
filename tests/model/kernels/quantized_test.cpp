#include "model/kernels/quantized.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "model/kernels/cpu/loops.h"

namespace fsdp::kernels {

namespace cpu::baseline {
extern const Level kLevel;
}

namespace {

at::Tensor random_weight(uint64_t seed, at::IntArrayRef shape) {
  at::manual_seed(seed);
  return at::randn(shape) * 0.02;
}

QuantizedWeight quantized(const at::Tensor& weight, Quantization form) {
  return {quantize(weight, form), weight.size(0), weight.size(1), form};
}

int64_t checksum(const at::Tensor& x) {
  const at::Tensor bytes = x.contiguous().view({-1}).view(at::kByte).to(at::kLong);
  return (bytes * (at::arange(bytes.numel(), at::kLong) % 251 + 1)).sum().item<int64_t>();
}

struct Figures {
  std::vector<int64_t> shape;
  std::vector<int64_t> checksums;  ///< of elements, magnitudes, groups, mean; of the matrix in fp32 and bf16
};

// bitsandbytes 0.49 on one thread: quantize_4bit(blocksize=64, compress_statistics=True, quant_type="nf4") of
// torch.randn() * 0.02 with seeds 1, 2, 3 and 4, and dequantize_4bit().
TEST(Quantized, Nf4HasTheBitsOfBitsAndBytes) {
  const std::vector<Figures> figures = {
      {{64, 128}, {63050564, 985086, 1384, 945, 470352413, 231118786}},
      {{100, 131}, {102550562, 2649182, 1255, 648, 757685267, 371555082}},
      {{1, 7}, {1483, 0, 0, 1243, 44528, 11607}},
      {{640, 576}, {2844945871, 88211917, 489510, 684, 21197121538, 10401876665}}};
  for (size_t i = 0; i < figures.size(); ++i) {
    const at::Tensor weight = random_weight(i + 1, figures[i].shape);
    const QuantizedWeight found = quantized(weight, Quantization::kNf4);
    const int64_t n = weight.numel(), blocks = (n + 63) / 64, groups = (blocks + 255) / 256;
    const auto parts = found.bytes.split_with_sizes({(n + 1) / 2, blocks, 4 * groups, 4});
    const QuantizedWeight of_bf16 = quantized(weight.to(at::kBFloat16), Quantization::kNf4);
    const std::vector<int64_t> sums = {checksum(parts[0]),
                                       checksum(parts[1]),
                                       checksum(parts[2]),
                                       checksum(parts[3]),
                                       checksum(dequantize(found, 0, found.rows, at::kFloat)),
                                       checksum(dequantize(of_bf16, 0, found.rows, at::kBFloat16))};
    EXPECT_EQ(sums, figures[i].checksums) << weight.sizes();
  }
}

// A large matrix is quantized piece by piece.
TEST(Quantized, ElementsOfALargeMatrixAreThoseOfItsRows) {
  for (const Quantization form : {Quantization::kNf4, Quantization::kInt8}) {
    const at::Tensor weight = random_weight(5, {1030, 2049});
    const at::Tensor found = quantized(weight, form).bytes;
    const int64_t a_byte = form == Quantization::kNf4 ? 2 : 1;
    for (const int64_t row : {0, 448, 512, 960}) {  // 64 rows are whole blocks
      const at::Tensor of_rows = quantized(weight.narrow(0, row, 64), form).bytes;
      const int64_t count = 64 * 2049 / a_byte;
      EXPECT_TRUE(at::equal(found.narrow(0, row * 2049 / a_byte, count), of_rows.narrow(0, 0, count))) << row;
    }
    const at::Tensor back = dequantize({found, 1030, 2049, form}, 0, 1030, at::kFloat);
    EXPECT_LT((back - weight).norm().item<double>(), 0.12 * weight.norm().item<double>());
  }
}

TEST(Quantized, TakesFourOrEightBitsAnElement) {
  EXPECT_EQ(quantized_bytes(Quantization::kNf4, 4096 * 4096), 4096 * 4096 / 2 + 4096 * 64 + 4 * 1024 + 4);
  EXPECT_EQ(quantized_bytes(Quantization::kInt8, 4096 * 4096), 4096 * 4096 + 4 * 4096 * 64);
  EXPECT_EQ(quantized_bytes(Quantization::kNf4, 65), 33 + 2 + 4 + 4);
}

TEST(Quantized, ErrorsAreThoseOfTheNumbersOfBits) {
  const at::Tensor weight = random_weight(5, {96, 200});
  const auto error = [&](Quantization form) {
    return ((dequantize(quantized(weight, form), 0, 96, at::kFloat) - weight).norm() / weight.norm())
        .item<double>();
  };
  EXPECT_LT(error(Quantization::kNf4), 0.1);
  EXPECT_GT(error(Quantization::kNf4), 0.05);
  EXPECT_LT(error(Quantization::kInt8), 0.007);
}

TEST(Quantized, RowsAloneAreThoseOfTheWholeInAllWaysToComputeThem) {
  for (Quantization form : {Quantization::kNf4, Quantization::kInt8}) {
    for (int64_t columns : {64, 77, 1}) {
      QuantizedWeight weight = quantized(random_weight(6, {41, columns}), form);
      // Parameters of a gathered unit may lie at any address.
      const at::Tensor elsewhere = at::empty({weight.bytes.numel() + 1}, at::kByte).slice(0, 1);
      weight.bytes = elsewhere.copy_(weight.bytes);
      for (at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
        const at::Tensor whole = dequantize(weight, 0, 41, type);
        for (auto [first, count] : {std::pair{0, 41}, {1, 3}, {40, 1}, {7, 0}}) {
          const at::Tensor expected = whole.narrow(0, first, count);
          EXPECT_TRUE(at::equal(dequantize(weight, first, count, type), expected));
          EXPECT_TRUE(at::equal(dequantize_composed(weight, first, count, type), expected));
        }
      }
    }
  }
}

TEST(Quantized, LoopsOfAllLevelsFindTheSameNumbers) {
  std::vector<uint8_t> nibbles(1000);
  for (size_t i = 0; i < nibbles.size(); ++i) nibbles[i] = static_cast<uint8_t>(i * 37);
  const std::vector<uint8_t> magnitudes(32, 3);
  const std::vector<float> values(256, 0.37F);
  const float group = 0.5F;
  std::vector<float> best(1990), baseline(1990);
  cpu::QuantizedRun run{.values = nibbles.data(),
                        .magnitudes = magnitudes.data(),
                        .groups = reinterpret_cast<const uint8_t*>(&group),
                        .magnitude_values = values.data(),
                        .mean = 0.01F,
                        .elements = 2000,
                        .begin = 5,
                        .end = 1995,
                        .to = best.data()};
  cpu::dequantize(Element::kFloat, run);
  run.to = baseline.data();
  cpu::baseline::kLevel.dequantize[0](run);
  EXPECT_EQ(best, baseline);
}

TEST(Quantized, KeepsZerosAndWhatIsNotFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (Quantization form : {Quantization::kNf4, Quantization::kInt8}) {
    EXPECT_TRUE(
        at::equal(dequantize(quantized(at::zeros({3, 64}), form), 0, 3, at::kFloat), at::zeros({3, 64})));
    at::Tensor weight = at::ones({1, 64});
    weight[0][5] = kInfinity;
    EXPECT_FALSE(dequantize(quantized(weight, form), 0, 1, at::kFloat).isfinite().all().item<bool>());
  }
}

TEST(Quantized, ProductsAndTheirGradientsAreThoseOfTheNumbers) {
  at::manual_seed(7);
  for (Quantization form : {Quantization::kNf4, Quantization::kInt8}) {
    // The second matrix is multiplied in two tiles.
    for (auto [rows, columns] : {std::pair{48, 80}, {4160, 2048}}) {
      const QuantizedWeight weight = quantized(random_weight(8, {rows, columns}), form);
      for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        const at::Tensor x = at::randn({2, 3, columns}).to(type).requires_grad_();
        const at::Tensor w = dequantize(weight, 0, rows, type);
        const at::Tensor y = quantized_linear(x, weight, Matmul::kMkl), dy = at::randn(y.sizes()).to(type);
        y.backward(dy);
        const double tolerance = type == at::kFloat ? 1e-5 : 1e-2;
        const auto close = [&](const at::Tensor& found, const at::Tensor& expected) {
          return (found.to(at::kFloat) - expected).abs().max().item<double>() <
                 tolerance * expected.abs().max().item<double>();
        };
        EXPECT_EQ(y.scalar_type(), type);
        EXPECT_TRUE(close(y, at::matmul(x.detach().to(at::kFloat), w.to(at::kFloat).t())));
        EXPECT_TRUE(close(x.grad(), at::matmul(dy.to(at::kFloat), w.to(at::kFloat))));
      }
    }
  }
}

}  // namespace
}  // namespace fsdp::kernels
