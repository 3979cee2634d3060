// Rows of parquet tables, all of them, within limits of time and memory that grow with the file.

#include <sys/resource.h>

#include <ctime>
#include <string>

#include "data/growth_limit.h"
#include "data/parquet_rows.h"
#include "fuzz/fuzz_target.h"

namespace fsdp::fuzz {
namespace {

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

int64_t peak_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{1024} * usage.ru_maxrss;
}

}  // namespace

int parquet(const uint8_t* data, size_t size) {
  MemoryFile file(data, size);
  const double began = cpu_seconds();
  const int64_t before = peak_bytes();
  int64_t text_bytes = 0;
  refuse_or_read([&] {
    const auto rows = data::open_parquet(file.path().string(), {"text", "messages"});
    std::string row;
    while (rows->next(row) > 0) {
      text_bytes += static_cast<int64_t>(row.size());
      row.clear();
    }
  });
  const auto bytes = static_cast<double>(size);
  // What any file may become, instrumented; then 5 s a MB.
  if (cpu_seconds() - began > 20 + 5e-6 * bytes) throw std::runtime_error("reading takes too long");
  if (text_bytes >
      data::GrowthLimit::kFreeBytes * 2 + static_cast<int64_t>(data::GrowthLimit::kMostExpansion * bytes)) {
    throw std::runtime_error("the rows are too large for the file");
  }
  if (peak_bytes() - before > (int64_t{640} << 20) + static_cast<int64_t>(64 * bytes)) {
    throw std::runtime_error("reading takes too much memory");
  }
  return 0;
}

}  // namespace fsdp::fuzz
