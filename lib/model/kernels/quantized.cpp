#include "model/kernels/quantized.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "base/tensor/parallel.h"
#include "base/util/error.h"
#include "model/kernels/below_autograd.h"
#include "model/kernels/cpu/loops.h"
#include "model/kernels/meta.h"

namespace fsdp::kernels {
namespace {

constexpr int64_t kBlock = cpu::kQuantizedBlock, kGroup = cpu::kMagnitudesOfGroup;

int64_t parts(int64_t size, int64_t part) { return (size + part - 1) / part; }

/// The layout of the bytes of a matrix.
struct QuantizedLayout {
  int64_t elements, blocks, groups;
  int64_t magnitudes, of_groups, mean, end;  ///< offsets

  QuantizedLayout(Quantization form, int64_t count)
      : elements(count), blocks(parts(count, kBlock)), groups(parts(blocks, kGroup)) {
    const bool is_nf4 = form == Quantization::kNf4;
    magnitudes = is_nf4 ? parts(elements, 2) : elements;
    of_groups = magnitudes + (is_nf4 ? blocks : 4 * blocks);
    mean = of_groups + (is_nf4 ? 4 * groups : 0);
    end = mean + (is_nf4 ? 4 : 0);
  }
};

/// Returns the 256 values of the magnitudes: 8-bit numbers whose exponent has a dynamic number of bits
/// (Dettmers: 8-bit approximations for parallelism in deep learning, 2015), ascending.
const at::Tensor& dynamic_values() {
  static const at::Tensor kValues = [] {
    constexpr int kExponents = 7;
    std::vector<at::Tensor> values{at::tensor({0.0F, 1.0F})};
    double power = 1e-6;
    for (int i = 0; i < kExponents; ++i, power = std::pow(10, i - kExponents + 1)) {
      const at::Tensor edges = at::linspace(0.1, 1, (int64_t{1} << i) + 1, at::kFloat);
      const at::Tensor means = edges.slice(0, 0, -1).add(edges.slice(0, 1)).div(2.0).mul(power);
      values.insert(values.end(), {means, means.neg()});
    }
    return std::get<0>(at::cat(values).sort());
  }();
  return kValues;
}

/// Number of points of [-1, 1] to which bitsandbytes, on the CPU, rounds before it finds the nearest value.
constexpr int64_t kPlaces = 1 << 16;
const at::Tensor& nearest_values() {
  static const at::Tensor kNearest = [] {
    const at::Tensor values = dynamic_values().to(at::kDouble);
    const at::Tensor middles = values.slice(0, 0, -1).add(values.slice(0, 1)).div(2);
    const at::Tensor places = at::arange(kPlaces, at::kDouble).div(kPlaces / 2.0 - 0.5).sub(1);
    return at::bucketize(places, middles).to(at::kByte);
  }();
  return kNearest;
}

/// Divides x into blocks, with zeros added. x: [n] -> [ceil(n / size), size]
at::Tensor in_blocks(const at::Tensor& x, int64_t size) {
  const int64_t rest = parts(x.size(0), size) * size - x.size(0);
  return (rest == 0 ? x : at::constant_pad_nd(x, {0, rest})).view({-1, size});
}

at::Tensor largest_of(const at::Tensor& blocks) { return blocks.abs().amax(1, /*keepdim=*/true); }

/// Copies x to the bytes, beginning at `offset`.
void put(const at::Tensor& bytes, int64_t offset, const at::Tensor& x) {
  const at::Tensor from = x.contiguous();
  std::memcpy(bytes.data_ptr<uint8_t>() + offset, from.const_data_ptr(), from.nbytes());
}

/// Calls use(first, blocks) for some blocks of x at a time, in fp32, without a copy of all of x. x: [n]
template <typename Use>
void for_blocks(const at::Tensor& x, const Use& use) {
  constexpr int64_t kAtATime = 1 << 14;
  for (int64_t first = 0; first < parts(x.size(0), kBlock); first += kAtATime) {
    const int64_t begin = first * kBlock, count = std::min(kAtATime * kBlock, x.size(0) - begin);
    use(first, in_blocks(x.narrow(0, begin, count).to(at::kFloat), kBlock));
  }
}

void quantize_nf4(const at::Tensor& x, const QuantizedLayout& places, const at::Tensor& bytes) {
  static const at::Tensor kMiddles = [] {
    const at::Tensor values = at::tensor(at::ArrayRef<float>(cpu::kNf4Values, 16));
    return values.slice(0, 0, -1).add(values.slice(0, 1)).div(2);
  }();
  const at::Tensor largest = at::empty({places.blocks, 1}, at::TensorOptions(at::kFloat));
  for_blocks(x, [&](int64_t first, const at::Tensor& blocks) {
    const at::Tensor here = largest.narrow(0, first, blocks.size(0));
    here.copy_(largest_of(blocks));
    const at::Tensor scaled = blocks.mul(here.clamp_min(1e-38).reciprocal());
    if (places.elements % kBlock != 0 && first + blocks.size(0) == places.blocks) {  // as in bitsandbytes
      scaled[-1].copy_(blocks[-1].div(here[-1].clamp_min_(1e-38)));
    }
    scaled.clamp_(-1, 1);
    const at::Tensor found =
        at::bucketize(scaled.view({-1}), kMiddles, /*out_int32=*/true).to(at::kByte).view({-1, 2});
    const at::Tensor pairs = found.select(1, 0).bitwise_left_shift(4).bitwise_or(found.select(1, 1));
    const int64_t begin = first * kBlock / 2;
    put(bytes, begin, pairs.narrow(0, 0, std::min(pairs.size(0), places.magnitudes - begin)));
  });

  at::Tensor mean;
  util::on_one_thread([&] {  // several threads' partial sums would be rounded differently
    const at::NoGradGuard no_grad;
    mean = largest.mean();
  });
  const at::Tensor rest = in_blocks(largest.view({-1}).sub(mean), kGroup), of_groups = largest_of(rest);
  const at::Tensor number = rest.div(of_groups).nan_to_num_(-1).add_(1).mul_(kPlaces / 2.0 - 0.5).add_(0.5);
  const at::Tensor nearest =
      nearest_values().index_select(0, number.floor_().clamp_(0, kPlaces - 1).to(at::kLong).view({-1}));
  put(bytes, places.magnitudes, nearest.narrow(0, 0, places.blocks));
  put(bytes, places.of_groups, of_groups);
  put(bytes, places.mean, mean);
}

void quantize_int8(const at::Tensor& x, const QuantizedLayout& places, const at::Tensor& bytes) {
  for_blocks(x, [&](int64_t first, const at::Tensor& blocks) {
    const at::Tensor largest = largest_of(blocks);
    const at::Tensor found = blocks.div(largest).nan_to_num_().mul_(127).round_().to(at::kChar).view({-1});
    const int64_t begin = first * kBlock;
    put(bytes, begin, found.narrow(0, 0, std::min(found.size(0), places.elements - begin)));
    put(bytes, places.magnitudes + 4 * first, largest);
  });
}

// ---- dequantization

Element element_of(at::ScalarType type) {
  FSDP_CHECK(type == at::kFloat || type == at::kBFloat16 || type == at::kHalf, type);
  return type == at::kFloat ? Element::kFloat : type == at::kBFloat16 ? Element::kBFloat16 : Element::kHalf;
}

void check(const QuantizedWeight& weight, int64_t first, int64_t count) {
  FSDP_CHECK(first >= 0 && count >= 0 && first + count <= weight.rows, first, " + ", count, " of ",
             weight.rows);
  FSDP_CHECK(weight.bytes.scalar_type() == at::kByte && weight.bytes.is_contiguous() &&
                 weight.bytes.numel() == quantized_bytes(weight.form, weight.rows * weight.columns),
             weight.bytes.sizes(), " bytes of ", weight.rows, " x ", weight.columns);
}

/// Returns bytes [begin, begin + 4 n) as [n] fp32.
at::Tensor floats_at(const at::Tensor& bytes, int64_t begin, int64_t n) {
  return bytes.narrow(0, begin, 4 * n).clone().view(at::kFloat);
}

/// Products of more elements are computed in tiles of rows, so that one tile's numbers exist at a time.
constexpr int64_t kTile = 1 << 22;

template <typename Use>
void for_tiles(const QuantizedWeight& weight, at::ScalarType type, const Use& use) {
  const int64_t most = std::max<int64_t>(kTile / weight.columns / 64 * 64, 64);
  for (int64_t first = 0; first < weight.rows; first += most) {
    use(first, dequantize(weight, first, std::min(most, weight.rows - first), type));
  }
}

class QuantizedLinear final : public torch::autograd::Function<QuantizedLinear> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& bytes,
                            int64_t rows, int64_t form, int64_t matmul) {
    const BelowAutograd below;
    context->save_for_backward({bytes});
    context->saved_data["rows"] = rows;
    context->saved_data["columns"] = x.size(-1);
    context->saved_data["form"] = form;
    context->saved_data["matmul"] = matmul;
    const QuantizedWeight weight{bytes, rows, x.size(-1), static_cast<Quantization>(form)};
    return shaped(quantized_product(as_matrix(x), weight, static_cast<Matmul>(matmul)), x);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const BelowAutograd below;
    const at::Tensor bytes = context->get_saved_variables()[0];
    const QuantizedWeight weight{bytes, context->saved_data["rows"].toInt(),
                                 context->saved_data["columns"].toInt(),
                                 static_cast<Quantization>(context->saved_data["form"].toInt())};
    const auto matmul = static_cast<Matmul>(context->saved_data["matmul"].toInt());
    const at::Tensor dx = quantized_product_back(as_matrix(gradients[0]), weight, matmul);
    return {shaped(dx, gradients[0]), {}, {}, {}, {}};
  }
};

}  // namespace

int64_t quantized_bytes(Quantization form, int64_t elements) { return QuantizedLayout(form, elements).end; }

at::Tensor quantize(const at::Tensor& weight, Quantization form) {
  const QuantizedLayout places(form, weight.numel());
  at::Tensor bytes = at::empty({places.end}, weight.options().dtype(at::kByte).requires_grad(false));
  if (weight.is_meta() || weight.numel() == 0) return bytes;
  FSDP_CHECK(weight.is_cpu(), weight.device());
  const at::NoGradGuard no_grad;
  const at::Tensor elements = weight.detach().reshape({-1});
  form == Quantization::kNf4 ? quantize_nf4(elements, places, bytes) : quantize_int8(elements, places, bytes);
  return bytes;
}

at::Tensor dequantize(const QuantizedWeight& weight, int64_t first, int64_t count, at::ScalarType type) {
  if (!weight.bytes.is_cpu() && !weight.bytes.is_meta()) {
    return dequantize_composed(weight, first, count, type);
  }
  check(weight, first, count);
  at::Tensor result = at::empty({count, weight.columns}, weight.bytes.options().dtype(type));
  if (result.is_meta() || result.numel() == 0) return result;
  const bool is_nf4 = weight.form == Quantization::kNf4;
  const QuantizedLayout places(weight.form, weight.rows * weight.columns);
  const auto* bytes = weight.bytes.const_data_ptr<uint8_t>();
  cpu::QuantizedRun run{.is_nf4 = is_nf4,
                        .values = bytes,
                        .magnitudes = bytes + places.magnitudes,
                        .groups = bytes + places.of_groups,
                        .magnitude_values = dynamic_values().const_data_ptr<float>(),
                        .elements = places.elements};
  if (is_nf4) std::memcpy(&run.mean, bytes + places.mean, sizeof run.mean);
  const int64_t begin = first * weight.columns, end = begin + count * weight.columns;
  auto* to = static_cast<std::byte*>(result.data_ptr());
  const int64_t size = result.element_size();
  // Each thread gets whole blocks.
  util::parallel_for(begin / kBlock, parts(end, kBlock), /*grain=*/512, [&](int64_t from, int64_t until) {
    cpu::QuantizedRun mine = run;
    mine.begin = std::max(begin, from * kBlock);
    mine.end = std::min(end, until * kBlock);
    mine.to = to + (mine.begin - begin) * size;
    cpu::dequantize(element_of(type), mine);
  });
  return result;
}

at::Tensor dequantize_composed(const QuantizedWeight& weight, int64_t first, int64_t count,
                               at::ScalarType type) {
  check(weight, first, count);
  const at::Tensor& bytes = weight.bytes;
  const QuantizedLayout places(weight.form, weight.rows * weight.columns);
  const int64_t begin = first * weight.columns, elements = count * weight.columns;
  const int64_t block = begin / kBlock, blocks = parts(begin + elements, kBlock) - block;
  at::Tensor values, magnitudes;
  if (weight.form == Quantization::kNf4) {
    const at::Tensor table = at::tensor(at::ArrayRef<float>(cpu::kNf4Values, 16)).to(bytes.device());
    const at::Tensor pairs = bytes.narrow(0, begin / 2, parts(begin + elements, 2) - begin / 2);
    const at::Tensor numbers = at::stack({pairs.bitwise_right_shift(4), pairs.bitwise_and(15)}, 1);
    values = table.index_select(0, numbers.view({-1}).narrow(0, begin % 2, elements).to(at::kInt));
    const at::Tensor groups = floats_at(bytes, places.of_groups, places.groups).repeat_interleave(kGroup);
    magnitudes = dynamic_values()
                     .to(bytes.device())
                     .index_select(0, bytes.narrow(0, places.magnitudes + block, blocks).to(at::kInt))
                     .mul(groups.narrow(0, block, blocks))
                     .add(floats_at(bytes, places.mean, 1));
  } else {
    values = bytes.narrow(0, begin, elements).view(at::kChar).to(at::kFloat);
    magnitudes = floats_at(bytes, places.magnitudes + 4 * block, blocks).div(127);
  }
  const at::Tensor of_elements =
      magnitudes.repeat_interleave(kBlock).narrow(0, begin - block * kBlock, elements);
  return values.mul(of_elements).to(type).view({count, weight.columns});
}

at::Tensor quantized_product(const at::Tensor& x, const QuantizedWeight& weight, Matmul matmul) {
  at::Tensor y;
  for_tiles(weight, x.scalar_type(), [&](int64_t first, const at::Tensor& tile) {
    const at::Tensor part = product(x, tile, matmul);
    if (tile.size(0) == weight.rows) {
      y = part;
      return;
    }
    if (!y.defined()) y = at::empty({x.size(0), weight.rows}, x.options());
    y.narrow(1, first, tile.size(0)).copy_(part);
  });
  return y;
}

at::Tensor quantized_product_back(const at::Tensor& dy, const QuantizedWeight& weight, Matmul matmul) {
  at::Tensor dx, sum;
  for_tiles(weight, dy.scalar_type(), [&](int64_t first, const at::Tensor& tile) {
    if (tile.size(0) == weight.rows) {
      dx = product(dy, tile.t(), matmul);
    } else {
      add_product(sum, dy.narrow(1, first, tile.size(0)), tile.t(), matmul);
    }
  });
  return dx.defined() ? dx : sum.to(dy.scalar_type());
}

at::Tensor quantized_linear(const at::Tensor& x, const QuantizedWeight& weight, Matmul matmul) {
  FSDP_CHECK(x.size(-1) == weight.columns && weight.rows > 0, x.sizes(), " by ", weight.rows, " x ",
             weight.columns);
  check(weight, 0, weight.rows);
  return QuantizedLinear::apply(autocast_operand(x), weight.bytes, weight.rows,
                                static_cast<int64_t>(weight.form), static_cast<int64_t>(matmul));
}

}  // namespace fsdp::kernels
