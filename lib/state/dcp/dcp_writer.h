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
  TensorInfo info;       ///< under its key
  std::string number{};  ///< the bytes of a tensor of one element; empty: the elements are in the weights

  template <typename Number>
  static std::string bytes_of(Number number) {
    std::string bytes(sizeof(number), '\0');
    std::memcpy(bytes.data(), &number, sizeof(number));
    return bytes;
  }
};

/// An object that is no tensor: None, a boolean, a number, a text or a list of them.
struct DcpValue {
  std::string key;
  nlohmann::json value;
  bool is_tuple = false;  ///< of a list
};

struct DcpFiles {
  std::filesystem::path folder;  ///< exists, and is empty
  int64_t files = 1;             ///< into which tensors are cut, along their first dimension
  util::ByteProgress progress{};
};

/// `source` has the tensors under their keys; their values are converted to the types that `tensors` says. kIo.
void write_dcp_files(const DcpFiles& files, const Weights& source, const std::vector<DcpTensor>& tensors,
                     const std::vector<DcpValue>& values);

/// Whether a file of this name is one that write_dcp_files() may write.
bool is_dcp_file(const std::string& name);

}  // namespace fsdp::checkpoint
