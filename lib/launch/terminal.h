#pragma once

#include <string>
#include <string_view>

namespace fsdp::launch {

/// Width of the terminal behind the descriptor (80 when it does not say), or 0 when it is no terminal.
int terminal_columns(int fd);

/// The start of `text` that fits into `columns` cells, so that a transient line never wraps (only its last
/// row could be erased). Colour sequences (ESC [ ... letter) take no cell and are ended if the text is cut;
/// every other UTF-8 character is taken to need one, and control characters are left out.
std::string fit_columns(std::string_view text, int columns);

}  // namespace fsdp::launch
