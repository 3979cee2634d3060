// The reader of safetensors files, which come from strangers.

#include <vector>

#include "fuzz/fuzz_target.h"
#include "state/weights/safetensors.h"

namespace fsdp::fuzz {

int safetensors(const uint8_t* data, size_t size) {
  MemoryFile file(data, size);
  refuse_or_read([&] {
    checkpoint::SafetensorsReader reader(file.path());
    for (const auto& [name, entry] : reader.tensors()) {
      int64_t count = std::min(entry.numel, kMostElements);
      std::vector<char> bytes(static_cast<size_t>(count) * c10::elementSize(entry.dtype));
      reader.read(name, 0, count, bytes.data());
      reader.read(name, entry.numel - count, entry.numel, bytes.data());
    }
  });
  return 0;
}

}  // namespace fsdp::fuzz
