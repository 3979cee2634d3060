#pragma once

#include <string>

#include "cli/outline.h"
#include "cli/page.h"

namespace fsdp::cli {

/// The program's page for man(1), section 1, as troff with the man macros. `notes` is what --help says last;
/// a page with words has them in place of it.
std::string man_page(const Outline& outline, const Page& page, const std::string& notes);

}  // namespace fsdp::cli
