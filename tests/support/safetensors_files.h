#pragma once

// Safetensors files for tests: whole ones from tensors, and raw ones from any header.

#include <filesystem>
#include <string>

#include "state/weights/safetensors.h"
#include "support/checkpoint_fixtures.h"

namespace fsdp::testing {

inline void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors) {
  std::vector<checkpoint::TensorInfo> infos;
  for (const auto& [name, tensor] : tensors) {
    infos.push_back({name, tensor.sizes().vec(), tensor.scalar_type()});
  }
  checkpoint::SafetensorsWriter writer(path, infos);
  for (const auto& info : writer.infos()) {
    for (const auto& [name, tensor] : tensors) {
      if (name == info.name) writer.append(tensor.data_ptr(), static_cast<int64_t>(tensor.nbytes()));
    }
  }
  writer.finish();
}

/// Length, header and data, without any check.
inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
  std::string bytes;
  for (int shift = 0; shift < 64; shift += 8) bytes += static_cast<char>((header.size() >> shift) & 0xff);
  return bytes + header + data;
}

}  // namespace fsdp::testing
