#pragma once

// The files of a checkpoint of torch.distributed.checkpoint.

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/util/progress_bar.h"
#include "state/weights/weights.h"

namespace fsdp::checkpoint {

struct DcpTensor {
  TensorInfo info;       ///< named by the tensor's key
  std::string number{};  ///< bytes of a tensor of one element; empty: the elements are in the weights

  template <typename Number>
  static std::string bytes_of(Number number) {
    std::string bytes(sizeof(number), '\0');
    std::memcpy(bytes.data(), &number, sizeof(number));
    return bytes;
  }
};

/// An object that is not a tensor: None, a boolean, a number, a text or a list of such values.
struct DcpValue {
  std::string key;
  nlohmann::json value;
  bool is_tuple = false;  ///< whether a list is written as a tuple
};

struct DcpFiles {
  std::filesystem::path folder;  ///< an empty folder that exists
  int64_t files = 1;             ///< number of files into which tensors are cut, along their first dimension
  util::ByteProgress progress{};
};

/// Writes the files of a checkpoint. `source` has the tensors under their keys; their values are converted to
/// the types in `tensors`. Throws Error(kIo).
void write_dcp_files(const DcpFiles& files, const Weights& source, const std::vector<DcpTensor>& tensors,
                     const std::vector<DcpValue>& values);

/// Whether write_dcp_files() may write a file of this name.
bool is_dcp_file(const std::string& name);

}  // namespace fsdp::checkpoint
