// Rows of parquet tables, all of them: limits_test.cpp measures their time and memory.

#include <string>

#include "data/texts/parquet_rows.h"
#include "fuzz/fuzz_target.h"

namespace fsdp::fuzz {

int parquet(const uint8_t* data, size_t size) {
  MemoryFile file(data, size);
  refuse_or_read([&] {
    const auto rows = data::open_parquet(file.path().string(), {"text", "messages"});
    std::string row;
    while (rows->next(row) > 0) row.clear();
  });
  return 0;
}

}  // namespace fsdp::fuzz
