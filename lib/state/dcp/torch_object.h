#pragma once

// Single objects as torch.save() writes them: a zip archive with a pickle and the bytes of a tensor.

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "state/dcp/pickle.h"
#include "state/dcp/zip_archive.h"

namespace fsdp::checkpoint {

/// PyTorch's names of the types that the toolkit stores: "torch.float32". Their Pickle globals.
std::string_view torch_dtype_name(c10::ScalarType dtype);
/// False for any other name.
bool find_torch_dtype(std::string_view name, c10::ScalarType& dtype);

/// The numbers of a torch.Size or of a tuple; false when the value is neither.
bool read_torch_sizes(const PickleValue& value, std::vector<int64_t>& sizes);

struct TorchTensor {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> shape;
  FilePart data;  ///< of its elements, contiguous in row-major order
};

/// What a part of a file says of its tensor. Compares the checksums of all bytes. kCheckpoint that starts with
/// `where` unless the part is a contiguous tensor on a CPU, of a type that the toolkit stores; see Pickle.
TorchTensor read_torch_tensor(const RawFile& file, const FilePart& part, const std::string& where);

/// json_of() an object that is no tensor.
nlohmann::json read_torch_value(const RawFile& file, const FilePart& part, const std::string& where);

/// Pickles of protocol 2, value by value.
class PickleWriter {
 public:
  PickleWriter() : bytes_("\x80\x02") {}
  /// Opcodes without arguments.
  PickleWriter& op(std::string_view opcodes) {
    bytes_ += opcodes;
    return *this;
  }
  PickleWriter& text(std::string_view value);
  PickleWriter& number(int64_t value);
  /// A tuple of numbers.
  PickleWriter& numbers(const std::vector<int64_t>& values);
  PickleWriter& global(std::string_view module, std::string_view name);
  /// None, booleans, numbers, texts, and lists of them, which become tuples if `as_tuple`.
  PickleWriter& json(const nlohmann::json& value, bool as_tuple = false);
  /// torch.Size.
  PickleWriter& size(const std::vector<int64_t>& sizes);
  std::string finish() { return std::move(op(".").bytes_); }

 private:
  template <typename Number>
  PickleWriter& append(char opcode, Number value);

  std::string bytes_;
};

/// Appends an archive of a tensor of which `append_data` appends the bytes; returns its size.
template <typename AppendData>
int64_t write_torch_tensor(RawFile& file, c10::ScalarType dtype, const std::vector<int64_t>& shape,
                           const AppendData& append_data);

/// The same of None, a boolean, a number, a text or a list of them.
int64_t write_torch_value(RawFile& file, const nlohmann::json& value, bool as_tuple);

namespace detail {
void begin_torch_archive(ZipWriter& zip, const std::string& pickle);
std::string pickled_tensor(c10::ScalarType dtype, const std::vector<int64_t>& shape);
inline constexpr std::string_view kTorchDataRecord = "archive/data/0";
}  // namespace detail

template <typename AppendData>
int64_t write_torch_tensor(RawFile& file, c10::ScalarType dtype, const std::vector<int64_t>& shape,
                           const AppendData& append_data) {
  ZipWriter zip(file);
  detail::begin_torch_archive(zip, detail::pickled_tensor(dtype, shape));
  zip.begin(detail::kTorchDataRecord);
  append_data(zip);
  return zip.finish();
}

}  // namespace fsdp::checkpoint
