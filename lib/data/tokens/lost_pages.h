#pragma once

// Pages of mapped files that are lost because the file was truncated or its disk fails. Access to such a page
// is SIGBUS, after which a program can only report which file it was.

#include <cstddef>
#include <string>

namespace fsdp::data {

/// Makes an access to a lost page of a registered file end the process with a line on stderr that names the
/// file, and exit code 7, instead of by SIGBUS. Other causes of SIGBUS end the process as before. Must be
/// called early in main().
void exit_at_lost_pages();

/// Registers one mapped file during the object's lifetime. Thread-safe.
class MappedRange {
 public:
  /// `name` is the file's name in the line on stderr: "token file data/a.bin".
  MappedRange(const char* begin, size_t bytes, const std::string& name);
  ~MappedRange();
  MappedRange(const MappedRange&) = delete;
  MappedRange& operator=(const MappedRange&) = delete;

  struct RegisteredRange;

 private:
  RegisteredRange* entry_;
};

}  // namespace fsdp::data
