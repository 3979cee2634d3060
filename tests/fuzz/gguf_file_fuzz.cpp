// The reader of GGUF files, which come from strangers.

#include <algorithm>
#include <vector>

#include "base/gguf/reader.h"
#include "fuzz/fuzz_target.h"
#include "state/weights/gguf_dequantise.h"

namespace fsdp::fuzz {

int gguf_file(const uint8_t* data, size_t size) {
  MemoryFile file(data, size);
  refuse_or_read([&] {
    gguf::Reader reader(file.path());
    for (const auto& [name, tensor] : reader.tensors()) {
      const int64_t whole = gguf::bytes_of(tensor), count = std::min(whole, kMostElements);
      std::vector<char> bytes(static_cast<size_t>(count));
      reader.read(tensor, 0, count, bytes.data());
      reader.read(tensor, whole - count, count, bytes.data());
      if (!gguf::is_quantised(tensor.type)) continue;
      const gguf::TypeTraits& traits = gguf::traits_of(tensor.type);
      const int64_t elements = whole / traits.block_bytes * traits.block_elements;
      std::vector<float> values(static_cast<size_t>(std::min(elements, kMostElements)));
      gguf::read_dequantised(reader, tensor, elements - static_cast<int64_t>(values.size()), elements,
                             values.data());
    }
  });
  return 0;
}

}  // namespace fsdp::fuzz
