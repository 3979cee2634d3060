#include "base/gguf/format.h"

#include <algorithm>

#include "base/util/error.h"

namespace fsdp::gguf {

namespace {

constexpr auto kTypes = std::to_array<TypeTraits>({{TensorType::kF32, 1, 4, 0, c10::ScalarType::Float},
                                                   {TensorType::kF16, 1, 2, 1, c10::ScalarType::Half},
                                                   {TensorType::kBF16, 1, 2, 32, c10::ScalarType::BFloat16},
                                                   {TensorType::kQ8_0, 32, 34, 7, {}},
                                                   {TensorType::kQ4_0, 32, 18, 2, {}},
                                                   {TensorType::kQ4_1, 32, 20, {}, {}},
                                                   {TensorType::kQ5_0, 32, 22, {}, {}},
                                                   {TensorType::kQ5_1, 32, 24, {}, {}},
                                                   {TensorType::kQ2_K, 256, 84, {}, {}},
                                                   {TensorType::kQ3_K, 256, 110, {}, {}},
                                                   {TensorType::kQ4_K, 256, 144, {}, {}},
                                                   {TensorType::kQ5_K, 256, 176, {}, {}},
                                                   {TensorType::kQ6_K, 256, 210, {}, {}},
                                                   {TensorType::kIq4Nl, 32, 18, {}, {}},
                                                   {TensorType::kIq4Xs, 256, 136, {}, {}}});

}  // namespace

const TypeTraits& traits_of(TensorType type) {
  const auto found = std::find_if(kTypes.begin(), kTypes.end(),
                                  [type](const TypeTraits& traits) { return traits.type == type; });
  FSDP_CHECK(found != kTypes.end(), static_cast<uint32_t>(type));
  return *found;
}

bool is_quantised(TensorType type) { return !traits_of(type).dtype; }

c10::ScalarType value_dtype(TensorType type) {
  return traits_of(type).dtype.value_or(c10::ScalarType::Float);
}

std::vector<std::string> written_type_names() {
  std::vector<std::string> names;
  for (const TypeTraits& traits : kTypes) {
    if (traits.file_type) names.push_back(util::name_of(traits.type));
  }
  return names;
}

std::optional<TensorType> type_of(c10::ScalarType dtype) {
  for (const TypeTraits& traits : kTypes) {
    if (traits.dtype == dtype) return traits.type;
  }
  return std::nullopt;
}

int64_t bytes_of(const Tensor& tensor) {
  const TypeTraits& traits = traits_of(tensor.type);
  int64_t numel = 1;
  for (const int64_t size : tensor.shape) numel *= size;
  return numel / traits.block_elements * traits.block_bytes;
}

int64_t aligned(int64_t bytes, int64_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

}  // namespace fsdp::gguf
