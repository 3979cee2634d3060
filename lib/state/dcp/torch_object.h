#pragma once

// Single objects in torch.save()'s format: a zip archive with a pickle and the bytes of a tensor.

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "state/dcp/pickle.h"
#include "state/dcp/zip_archive.h"

namespace fsdp::checkpoint {

/// PyTorch's name of a type that the toolkit stores, which is its global in a pickle: "torch.float32".
std::string_view torch_dtype_name(c10::ScalarType dtype);
/// Finds the type of such a name. False for any other name.
bool find_torch_dtype(std::string_view name, c10::ScalarType& dtype);

/// Reads the numbers of a torch.Size or of a tuple. False if the value is neither.
bool read_torch_sizes(const PickleValue& value, std::vector<int64_t>& sizes);

struct TorchTensor {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> shape;
  FilePart data;  ///< place of the elements, contiguous in row-major order
};

/// Reads the description of a tensor from a part of a file. Compares the checksums of all bytes. Throws
/// Error(kCheckpoint) that begins with `where` unless the part is a contiguous CPU tensor of a type that the
/// toolkit stores, or if Pickle throws.
TorchTensor read_torch_tensor(const util::RawFile& file, const FilePart& part, const std::string& where);

/// Reads an object that is not a tensor as JSON (json_of()).
nlohmann::json read_torch_value(const util::RawFile& file, const FilePart& part, const std::string& where);

/// Writes a pickle of protocol 2, value by value.
class PickleWriter {
 public:
  PickleWriter() : bytes_("\x80\x02") {}
  /// Appends opcodes without arguments.
  PickleWriter& op(std::string_view opcodes) {
    bytes_ += opcodes;
    return *this;
  }
  PickleWriter& text(std::string_view value);
  PickleWriter& number(int64_t value);
  /// Appends a tuple of numbers.
  PickleWriter& numbers(const std::vector<int64_t>& values);
  PickleWriter& global(std::string_view module, std::string_view name);
  /// Appends None, a boolean, a number, a text or a list of such values. A list becomes a tuple if
  /// `as_tuple`.
  PickleWriter& json(const nlohmann::json& value, bool as_tuple = false);
  /// Appends a torch.Size.
  PickleWriter& size(const std::vector<int64_t>& sizes);
  std::string finish() { return std::move(op(".").bytes_); }

 private:
  template <typename Number>
  PickleWriter& append(char opcode, Number value);

  std::string bytes_;
};

/// Appends an archive of a tensor to the file and returns the archive's size. `append_data` appends the
/// tensor's bytes.
template <typename AppendData>
int64_t write_torch_tensor(util::RawFile& file, c10::ScalarType dtype, const std::vector<int64_t>& shape,
                           const AppendData& append_data);

/// Appends an archive of None, a boolean, a number, a text or a list of such values, and returns its size.
int64_t write_torch_value(util::RawFile& file, const nlohmann::json& value, bool as_tuple);

namespace detail {
void begin_torch_archive(ZipWriter& zip, const std::string& pickle);
std::string pickled_tensor(c10::ScalarType dtype, const std::vector<int64_t>& shape);
inline constexpr std::string_view kTorchDataRecord = "archive/data/0";
}  // namespace detail

template <typename AppendData>
int64_t write_torch_tensor(util::RawFile& file, c10::ScalarType dtype, const std::vector<int64_t>& shape,
                           const AppendData& append_data) {
  ZipWriter zip(file);
  detail::begin_torch_archive(zip, detail::pickled_tensor(dtype, shape));
  zip.begin(detail::kTorchDataRecord);
  append_data(zip);
  return zip.finish();
}

}  // namespace fsdp::checkpoint
