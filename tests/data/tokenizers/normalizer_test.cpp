#include "data/tokenizers/normalizer.h"

#include "base/util/file.h"
#include "data/token_fixtures.h"
#include "data/tokenizers/vocabulary.h"
#include "data/tokenizers/vocabulary_tokenizer.h"
#include "support/source_folder.h"

namespace fsdp::data {
namespace {

using Kind = NormalizerStep::StepKind;

NormalizerStep replacement(std::string pattern, std::string content, bool literal = true) {
  NormalizerStep step;
  step.kind = Kind::kReplace;
  step.pattern = std::move(pattern);
  step.content = std::move(content);
  step.literal = literal;
  return step;
}

NormalizerStep prefix(std::string content) {
  NormalizerStep step;
  step.kind = Kind::kPrepend;
  step.content = std::move(content);
  return step;
}

NormalizerStep strip_right() {
  NormalizerStep step;
  step.kind = Kind::kStrip;
  step.right = true;
  return step;
}

TEST(Normalizer, AppliesItsStepsInOrder) {
  const Normalizer normalizer(
      {prefix("_"), replacement(" ", "_"), replacement("b+", "B", false), strip_right()});
  EXPECT_EQ(normalizer("a bbb b\t", true), "_a_B_B");
  EXPECT_EQ(normalizer("a", false), "a");
}

// 28 replacements of a by aa would make 2^28 bytes of one.
TEST(Normalizer, RefusesToMakeATextMoreThan64TimesAsLong) {
  const std::vector<NormalizerStep> doubling(28, replacement("a", "aa"));
  const std::string a(10'000, 'a');
  expect_error(ErrorKind::kData, {"normalizer", "64 times", "another tokenizer"}, [&] {
    Normalizer normalizer(doubling);
    normalizer(a, true);
  });
  for (const bool literal : {true, false}) {
    const Normalizer normalizer({replacement("a", std::string(100'000, 'x'), literal)});
    expect_error(ErrorKind::kData, {"64 times"}, [&] { normalizer(a, true); });
    EXPECT_EQ(normalizer(std::string(3000, 'b') + "a", true).size(), 103'000u);
  }
  const Normalizer prepending({prefix(std::string(70'000, 'x'))});
  expect_error(ErrorKind::kData, {"64 times"}, [&] { prepending("a", true); });
}

TEST(Normalizer, OfManyStepsIsRefused) {
  std::string steps;
  for (int i = 0; i < 100; ++i)
    steps += std::string(i > 0 ? "," : "") + R"({"type": "Prepend", "prepend": "x"})";
  const std::string file =
      R"({"normalizer": {"type": "Sequence", "normalizers": [)" + steps +
      R"(]}, "model": {"type": "BPE", "unk_token": "x", "vocab": {"x": 0}, "merges": []},)" +
      R"("decoder": {"type": "Fuse"}})";
  expect_error(ErrorKind::kData, {"more than 64 normalizers"}, [&] { parse_tokenizer_json(file, "t.json"); });
}

}  // namespace
}  // namespace fsdp::data
