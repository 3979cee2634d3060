#include <algorithm>

#include "launch/output_pump.h"

namespace fsdp::launch {
namespace {

/// Largest length <= `limit` at which `text` can be cut without tearing a UTF-8 character.
size_t cut_before(std::string_view text, size_t limit) {
  constexpr size_t kLongestCharacter = 4;
  for (size_t back = 0; back < std::min(limit, kLongestCharacter); ++back) {
    const auto next = static_cast<unsigned char>(text[limit - back]);
    if ((next & 0xC0) != 0x80) return limit - back;
  }
  return limit;  // not UTF-8
}

}  // namespace

void LineSplitter::feed(std::string_view bytes, const OnLine& on_line) {
  while (!bytes.empty()) {
    if (after_return_) {
      if (bytes.front() == '\n' || bytes.front() == '\r') {
        if (bytes.front() == '\n') complete(on_line);
        bytes.remove_prefix(1);
        continue;
      }
      after_return_ = false;
      replaces_transient_ = true;
      line_.clear();
    }
    const size_t end = bytes.find_first_of("\r\n");
    append(bytes.substr(0, end), on_line);
    if (end == std::string_view::npos) return;
    if (bytes[end] == '\n') {
      complete(on_line);
    } else {
      after_return_ = true;
    }
    bytes.remove_prefix(end + 1);
  }
}

void LineSplitter::finish(const OnLine& on_line) {
  if (!after_return_ && !line_.empty()) complete(on_line);
  line_.clear();
  after_return_ = replaces_transient_ = false;
}

void LineSplitter::append(std::string_view bytes, const OnLine& on_line) {
  line_ += bytes;
  while (line_.size() > longest_line_bytes_) {
    const size_t cut = cut_before(line_, longest_line_bytes_);
    on_line(std::string_view(line_).substr(0, cut));
    line_.erase(0, cut);
  }
}

void LineSplitter::complete(const OnLine& on_line) {
  on_line(line_);
  line_.clear();
  after_return_ = replaces_transient_ = false;
}

}  // namespace fsdp::launch
