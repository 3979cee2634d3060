#include "base/util/nearest_pattern.h"

#include <gtest/gtest.h>

namespace fsdp::util {
namespace {

TEST(NearestPattern, MatchesANameWithAWordCorrected) {
  const std::vector<std::string> names = {"model.embed_tokens.weight",
                                          "model.layers.0.self_attn.q_proj.weight",
                                          "model.layers.0.input_layernorm.weight", "model.norm.bias"};
  EXPECT_EQ(nearest_pattern("*.q_porj.*", names), "*.q_proj.*");
  EXPECT_EQ(nearest_pattern("*.bais", names), "*.bias");
  EXPECT_EQ(nearest_pattern("*nrom*", names), "*norm*");
  EXPECT_EQ(nearest_pattern("*embd*", names), "*embed*");
  EXPECT_EQ(nearest_pattern("model.norm.bais", names), "model.norm.bias");
  EXPECT_EQ(nearest_pattern("*.conv?.*", names), "");
  EXPECT_EQ(nearest_pattern("*wte*", names), "");
  EXPECT_EQ(nearest_pattern("*.layers.9.*", names), "") << "no word is misspelt";
  EXPECT_EQ(nearest_pattern("*", {}), "");
}

TEST(NearestPattern, IsSuggestedOrThePatternIsToGo) {
  EXPECT_EQ(pattern_remedy("*nrom*", {"norm.weight"}), "did you mean \"*norm*\"?");
  EXPECT_EQ(pattern_remedy("*embed*", {"norm.weight"}), "correct it or take it out");
}

}  // namespace
}  // namespace fsdp::util
