#pragma once

// Output streams that pass no control characters to a terminal, whatever names and texts of files contain.

#include <ostream>
#include <streambuf>
#include <string>

namespace fsdp::cli {

/// Makes the output to `stream` printable (util::printable()) during its lifetime. Not thread-safe.
class PrintableStream final : private std::streambuf {
 public:
  explicit PrintableStream(std::ostream& stream) : stream_(stream), to_(stream.rdbuf(this)) {}
  ~PrintableStream() override;
  PrintableStream(const PrintableStream&) = delete;
  PrintableStream& operator=(const PrintableStream&) = delete;

 private:
  int_type overflow(int_type character) override;
  std::streamsize xsputn(const char* text, std::streamsize count) override;
  int sync() override;
  /// Passes on the first `count` bytes of `waiting_`. Returns whether that succeeded.
  bool pass_on(size_t count);

  std::ostream& stream_;
  std::streambuf* to_;
  std::string waiting_;  ///< bytes not passed on yet, so that no character is split
};

}  // namespace fsdp::cli
