// Rows of archives of WebDataset and shards of MosaicML's streaming.

#include <string>

#include "data/texts/mds_rows.h"
#include "data/texts/tar_rows.h"
#include "fuzz/fuzz_target.h"

namespace fsdp::fuzz {

int archive_rows(const uint8_t* data, size_t size) {
  MemoryFile file(data, size);
  const std::string path = file.path().string();
  for (const auto& open : {data::open_tar, data::open_mds}) {
    refuse_or_read([&] {
      const auto rows = open(path, {"text", "tokens", "n", "a"});
      std::string row;
      while (rows->next(row) > 0) row.clear();
    });
  }
  return 0;
}

}  // namespace fsdp::fuzz
