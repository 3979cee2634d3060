#pragma once

// Pages of mapped files that are gone: the file was truncated, or its disk fails. An access to one is SIGBUS, of which
// a program can only say which file it was.

#include <cstddef>
#include <string>

namespace fsdp::data {

/// Makes an access to a lost page of a registered file end the process with a line on stderr that names the file, and
/// exit code 7, instead of by SIGBUS. Other causes of SIGBUS end it as before. To be called early in main().
void exit_at_lost_pages();

/// Tells of one mapped file during its lifetime. Thread-safe.
class MappedRange {
 public:
  /// `name` is for the line: "token file data/a.bin".
  MappedRange(const char* begin, size_t bytes, const std::string& name);
  ~MappedRange();
  MappedRange(const MappedRange&) = delete;
  MappedRange& operator=(const MappedRange&) = delete;

  struct Entry;

 private:
  Entry* entry_;
};

}  // namespace fsdp::data
