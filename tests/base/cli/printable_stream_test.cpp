#include "base/cli/printable_stream.h"

#include <gtest/gtest.h>

#include <sstream>

namespace fsdp::cli {
namespace {

TEST(PrintableStream, PassesOnWhatATerminalTakesAsText) {
  std::ostringstream out;
  {
    const PrintableStream printable(out);
    out << "a\x1b[31m" << '\xc2' << '\x9b' << "b\u202e" << 5 << "\n";
    EXPECT_EQ(out.str(), "") << "not before it is flushed";
    out << std::flush;
    EXPECT_EQ(out.str(), "a\\x1b[31m\\xc2\\x9bb\\xe2\\x80\\xae5\n");
    out << std::string(100'000, 'x') << "\n\x7f";
  }
  out << "\x1b";  // as before
  EXPECT_TRUE(out.str().ends_with("x\n\\x7f\x1b"));
}

}  // namespace
}  // namespace fsdp::cli
