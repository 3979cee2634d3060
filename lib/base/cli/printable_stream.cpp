#include "base/cli/printable_stream.h"

#include "base/util/text.h"

namespace fsdp::cli {

PrintableStream::~PrintableStream() {
  sync();
  stream_.rdbuf(to_);
}

std::streambuf::int_type PrintableStream::overflow(int_type character) {
  if (traits_type::eq_int_type(character, traits_type::eof())) return sync();
  const char one = traits_type::to_char_type(character);
  return xsputn(&one, 1) == 1 ? character : traits_type::eof();
}

std::streamsize PrintableStream::xsputn(const char* text, std::streamsize count) {
  constexpr size_t kMostWaiting = 1 << 16;
  waiting_.append(text, static_cast<size_t>(count));
  if (waiting_.size() < kMostWaiting) return count;
  const size_t end = waiting_.rfind('\n');
  return pass_on(end == std::string::npos ? waiting_.size() : end + 1) ? count : 0;
}

int PrintableStream::sync() { return pass_on(waiting_.size()) && to_->pubsync() == 0 ? 0 : -1; }

bool PrintableStream::pass_on(size_t count) {
  const std::string shown = util::printable(std::string_view(waiting_).substr(0, count));
  waiting_.erase(0, count);
  const auto size = static_cast<std::streamsize>(shown.size());
  return to_->sputn(shown.data(), size) == size;
}

}  // namespace fsdp::cli
