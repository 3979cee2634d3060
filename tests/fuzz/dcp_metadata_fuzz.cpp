// The reader of .metadata of torch.distributed.checkpoint: pickles, which come from strangers.

#include <string>

#include "fuzz/fuzz_target.h"
#include "state/dcp/dcp_folder.h"

namespace fsdp::fuzz {

int dcp_metadata(const uint8_t* data, size_t size) {
  refuse_or_read([&] {
    checkpoint::parse_dcp_metadata(std::string(reinterpret_cast<const char*>(data), size), "fuzz");
  });
  return 0;
}

}  // namespace fsdp::fuzz
