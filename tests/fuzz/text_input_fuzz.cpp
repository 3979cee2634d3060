// Texts, compressed or not.

#include <string>

#include "data/texts/text_input.h"
#include "fuzz/fuzz_target.h"

namespace fsdp::fuzz {

int text_input(const uint8_t* data, size_t size) {
  MemoryFile file(data, size);
  refuse_or_read([&] {
    data::TextInput input(file.path().string());
    std::string text;
    for (int64_t left = 64 * kMostElements; left > 0; left -= static_cast<int64_t>(text.size())) {
      text.clear();
      if (input.read(kMostElements, text) == 0) break;
    }
  });
  return 0;
}

}  // namespace fsdp::fuzz
