// The reader of what torch.save() writes: zip archives with pickles, which come from strangers.

#include <algorithm>
#include <vector>

#include "fuzz/fuzz_target.h"
#include "state/dcp/torch_object.h"

namespace fsdp::fuzz {

int torch_object(const uint8_t* data, size_t size) {
  const MemoryFile memory(data, size);
  const auto file = util::RawFile::open(memory.path());
  const checkpoint::FilePart whole{0, static_cast<int64_t>(size)};
  refuse_or_read([&] {
    const checkpoint::TorchTensor tensor = checkpoint::read_torch_tensor(file, whole, "fuzz");
    std::vector<char> bytes(static_cast<size_t>(std::min(tensor.data.bytes, kMostElements)));
    file.read_at(tensor.data.begin + tensor.data.bytes - static_cast<int64_t>(bytes.size()), bytes.data(),
                 static_cast<int64_t>(bytes.size()));
  });
  refuse_or_read([&] {
    checkpoint::read_torch_value(file, whole, "fuzz")
        .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  });
  return 0;
}

}  // namespace fsdp::fuzz
