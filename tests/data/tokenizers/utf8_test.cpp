#include "data/tokenizers/utf8.h"

#include <gtest/gtest.h>

#include "base/util/error.h"

namespace fsdp::data {
namespace {

TEST(Utf8, FindsTheFirstByteThatIsNoCharacter) {
  for (std::string good : {"", "ascii of more than eight bytes", "\xc2\x80", "\xed\x9f\xbf", "\xee\x80\x80",
                           "\xf4\x8f\xbf\xbf", "\xf0\x90\x80\x80", "na\u00efve \U0001f600"}) {
    EXPECT_EQ(valid_utf8_prefix(good), good.size());
    EXPECT_EQ(valid_utf8_prefix(concat(good, "\xff")), good.size());
  }
  // A lone continuation, overlong forms, a surrogate, above U+10FFFF, cut off.
  for (std::string bad : {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf", "\xed\xa0\x80",
                          "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe2\x82", "\xe2(\xac"}) {
    EXPECT_EQ(valid_utf8_prefix(concat("12345678", bad)), 8u);
  }
}

TEST(Utf8, KnowsWhatCouldStillBecomeACharacter) {
  const std::string face = "\U0001f600";
  for (size_t bytes : {1, 2, 3}) EXPECT_EQ(incomplete_utf8_tail(concat("a", face.substr(0, bytes))), bytes);
  EXPECT_EQ(incomplete_utf8_tail(concat("a", face)), 0u);
  EXPECT_EQ(incomplete_utf8_tail("a\xff"), 0u);
  EXPECT_EQ(incomplete_utf8_tail("a\x80\x80"), 0u);
  EXPECT_EQ(incomplete_utf8_tail("\xe0\x80"), 0u);  // overlong whatever follows
  EXPECT_EQ(incomplete_utf8_tail(""), 0u);
}

TEST(Utf8, CodePointsGoThereAndBack) {
  for (uint32_t value : {0x0u, 0x7fu, 0x80u, 0x7ffu, 0x800u, 0xffffu, 0x10000u, 0x10ffffu}) {
    std::string text;
    append_utf8(text, value);
    CodePoint read = first_code_point(concat(text, "x"));
    EXPECT_EQ(read.value, value);
    EXPECT_EQ(read.bytes, text.size());
  }
}

TEST(Utf8, MessagesAreOneShortLine) {
  EXPECT_EQ(for_message("a\nb\tc\x1b[0m"), "a\\nb c\\x1b[0m");
  EXPECT_LT(for_message(std::string(5000, 'x')).size(), 310u);
}

}  // namespace
}  // namespace fsdp::data
