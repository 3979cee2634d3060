#include "base/tensor/seeded_random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

namespace fsdp::util {
namespace {

uint32_t draw(at::Generator& generator) { return generator.get<at::CPUGeneratorImpl>()->random(); }

TEST(SkipDraws, LeadsWhereDrawsLead) {
  for (int64_t before : {0, 1, 16, 623, 624, 625, 1000}) {
    for (int64_t count : {0, 1, 16, 622, 623, 624, 625, 1247, 1248, 5000}) {
      at::Generator drawn = named_generator(7, "a"), skipped = named_generator(7, "a");
      for (int64_t i = 0; i < before; ++i) EXPECT_EQ(draw(drawn), draw(skipped));
      for (int64_t i = 0; i < count; ++i) draw(drawn);
      skip_draws(skipped, count);
      for (int i = 0; i < 700; ++i) ASSERT_EQ(draw(drawn), draw(skipped)) << before << " then " << count;
    }
  }
}

TEST(NamedGenerator, DependsOnSeedAndName) {
  at::Generator one = named_generator(7, "a"), same = named_generator(7, "a"),
                other = named_generator(7, "b"), later = named_generator(8, "a");
  const uint32_t first = draw(one);
  EXPECT_EQ(first, draw(same));
  EXPECT_NE(first, draw(other));
  EXPECT_NE(first, draw(later));
}

}  // namespace
}  // namespace fsdp::util
