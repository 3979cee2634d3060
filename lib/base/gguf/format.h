#pragma once

// The format of GGUF files (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): types of tensors
// and of metadata. A file has a magic and a version, the metadata, the descriptions of the tensors, and their
// bytes, each tensor aligned.

#include <torch/headeronly/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/util/enum_names.h"

namespace fsdp::gguf {

inline constexpr char kMagic[] = {'G', 'G', 'U', 'F'};
inline constexpr uint32_t kVersion = 3;
inline constexpr int64_t kDefaultAlignment = 32;

/// The types of tensors that can be read; the values are the format's.
enum class TensorType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kBF16 = 30,
  kQ8_0 = 8,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIq4Nl = 20,
  kIq4Xs = 23
};
constexpr auto enum_names(TensorType) {
  return std::to_array<util::EnumName<TensorType>>({{TensorType::kF32, "f32"},
                                                    {TensorType::kF16, "f16"},
                                                    {TensorType::kBF16, "bf16"},
                                                    {TensorType::kQ8_0, "q8_0"},
                                                    {TensorType::kQ4_0, "q4_0"},
                                                    {TensorType::kQ4_1, "q4_1"},
                                                    {TensorType::kQ5_0, "q5_0"},
                                                    {TensorType::kQ5_1, "q5_1"},
                                                    {TensorType::kQ2_K, "q2_K"},
                                                    {TensorType::kQ3_K, "q3_K"},
                                                    {TensorType::kQ4_K, "q4_K"},
                                                    {TensorType::kQ5_K, "q5_K"},
                                                    {TensorType::kQ6_K, "q6_K"},
                                                    {TensorType::kIq4Nl, "iq4_nl"},
                                                    {TensorType::kIq4Xs, "iq4_xs"}});
}

struct TypeTraits {
  TensorType type;
  int64_t block_elements, block_bytes;
  /// "general.file_type" of a file whose matrices have this type. Nothing: the type is read, but not written.
  std::optional<uint32_t> file_type;
  std::optional<c10::ScalarType> dtype;  ///< nothing: quantised
};

const TypeTraits& traits_of(TensorType type);
bool is_quantised(TensorType type);
/// Type of the values: those of quantised types are products in f32.
c10::ScalarType value_dtype(TensorType type);
/// Names of the types that files can be written in.
std::vector<std::string> written_type_names();
/// Returns nothing for types that GGUF files of this library do not have.
std::optional<TensorType> type_of(c10::ScalarType dtype);

/// A tensor; `shape` has the outermost dimension first, unlike the format.
struct Tensor {
  std::string name;
  std::vector<int64_t> shape;
  TensorType type = TensorType::kF32;
  int64_t begin_bytes = 0;  ///< offset in the file
};

/// Size of the elements, without padding. The last dimension is a multiple of the type's block.
int64_t bytes_of(const Tensor& tensor);
int64_t aligned(int64_t bytes, int64_t alignment);

/// A value of metadata. Types that nothing here needs are monostate: 64-bit and negative numbers, and their
/// lists.
using Value = std::variant<std::monostate, uint32_t, float, bool, std::string, std::vector<std::string>,
                           std::vector<float>, std::vector<int32_t>>;

/// Keys and values in the order of the file.
using Metadata = std::vector<std::pair<std::string, Value>>;

/// Numbers that a file has for the types of values.
enum class ValueKind : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64
};

}  // namespace fsdp::gguf
