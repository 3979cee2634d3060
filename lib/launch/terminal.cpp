#include <sys/ioctl.h>
#include <unistd.h>

#include "launch/console.h"

namespace fsdp::launch {

int terminal_columns(int fd) {
  if (!::isatty(fd)) return 0;
  constexpr int kUsualColumns = 80;
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsualColumns;
}

std::string fit_columns(std::string_view text, int columns) {
  std::string fitted;
  bool has_sequence = false;
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    size_t length = 1;
    if (byte == 0x1B && i + 1 < text.size() && text[i + 1] == '[') {
      length = 2;
      while (i + length < text.size() && (text[i + length] < 0x40 || text[i + length] > 0x7E)) ++length;
      length = std::min(length + 1, text.size() - i);
      has_sequence = true;
    } else if (byte < 0x20 || byte == 0x7F) {
      ++i;
      continue;
    } else {
      while (i + length < text.size() && (static_cast<unsigned char>(text[i + length]) & 0xC0) == 0x80) {
        ++length;
      }
      if (columns-- <= 0) break;
    }
    fitted += text.substr(i, length);
    i += length;
  }
  if (has_sequence && columns < 0) fitted += "\033[0m";
  return fitted;
}

}  // namespace fsdp::launch
