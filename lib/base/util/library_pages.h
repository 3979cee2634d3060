#pragma once

#include <cstdint>

namespace fsdp::util {

/// Unmaps the resident pages of this program's and its libraries' files: code and tables, most of which are read while a
/// program starts and never again. What is used afterwards is mapped again from the system's page cache. Pages that
/// this process has changed, such as relocated tables and those with a debugger's breakpoints, stay. Returns the
/// bytes unmapped; 0 where /proc does not tell which pages have changed.
int64_t unmap_library_pages();

}  // namespace fsdp::util
