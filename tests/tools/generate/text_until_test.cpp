#include "tools/generate/text_until.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace fsdp::generate {
namespace {

TEST(TextUntil, EndsBeforeTheFirstStopThoughItComesInPieces) {
  const std::unique_ptr<data::Tokenizer> bytes = data::make_tokenizer("bytes");
  TextUntil text(decoder_after(*bytes, {'x'}), {"stop", "\n"});
  for (const char c : std::string("go sto")) text.push(c);
  EXPECT_FALSE(text.has_ended());
  EXPECT_EQ(text.text(), "go sto");
  text.push('p');
  EXPECT_TRUE(text.has_ended());
  EXPECT_EQ(text.text(), "go ");
  EXPECT_EQ(text.tokens(), 7u);
  text.push('!');
  EXPECT_EQ(text.finish(), "go ");
  EXPECT_EQ(text.tokens(), 7u);
}

TEST(TextUntil, WithoutStopsGoesOnAndFinishesCharacters) {
  const std::unique_ptr<data::Tokenizer> bytes = data::make_tokenizer("bytes");
  TextUntil text(decoder_after(*bytes, {}), {});
  text.push('a');
  text.push(0xC3);
  EXPECT_EQ(text.text(), "a");
  EXPECT_EQ(text.finish(), "a\xC3");
}

}  // namespace
}  // namespace fsdp::generate
