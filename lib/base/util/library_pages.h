#pragma once

#include <cstdint>

namespace fsdp::util {

/// Unmaps the resident pages of the files of this program and its libraries: code and tables, most of which
/// are read only while a program starts. Pages used later are mapped again from the system's page cache.
/// Pages that this process has changed, such as relocated tables and those with a debugger's breakpoints,
/// stay. Returns the number of bytes unmapped; 0 if /proc does not report which pages have changed.
int64_t unmap_library_pages();

}  // namespace fsdp::util
