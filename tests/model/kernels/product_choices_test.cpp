#include "model/kernels/product_choices.h"

#include <c10/core/Device.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace fsdp::kernels {
namespace {

const std::vector<ProductAlgorithm> kTwo = {{1, 2, 3, 4, 5, 6, 7, ~uint64_t{0}}, {9, 8, 7, 6, 5, 4, 3, 2}};

TEST(ProductChoices, AreTheFastestUnlessLibtorchIsNearlyAsFast) {
  ProductChoices choices({});
  EXPECT_EQ(choices.choose("a", kTwo, std::vector{1.0, 0.9, 0.8}, 0), kTwo[1]);
  EXPECT_EQ(choices.choose("b", kTwo, std::vector{1.0, 0.97, 1.2}, 0), kTwo[0]);
  EXPECT_EQ(choices.choose("c", kTwo, std::vector{1.0, 0.99, 1.2}, 0), std::nullopt);
  EXPECT_EQ(choices.choose("d", {}, std::vector{1.0}, 0), std::nullopt);
}

TEST(ProductChoices, AreUsedOnceTheyAreSettled) {
  ProductChoices choices({.known = {{"a", kTwo[0]}}});
  choices.choose("b", kTwo, std::vector{1.0, 0.9, 0.8}, 0);
  choices.choose("c", kTwo, std::vector{1.0, 1.0, 1.0}, 0);
  EXPECT_EQ(choices.find("a"), ProductChoice(kTwo[0]));
  EXPECT_FALSE(choices.find("b")) << "other ranks may choose otherwise";
  EXPECT_EQ(choices.find("b", /*tried=*/true), ProductChoice(kTwo[1]));
  EXPECT_FALSE(choices.is_settled());
  const ChosenProducts all = choices.all();
  EXPECT_EQ(all, (ChosenProducts{{"a", kTwo[0]}, {"b", kTwo[1]}, {"c", std::nullopt}}));
  choices.settle({{"b", kTwo[0]}, {"c", std::nullopt}});
  EXPECT_TRUE(choices.is_settled());
  EXPECT_EQ(choices.find("b"), ProductChoice(kTwo[0])) << "what the ranks agreed on counts";
  ASSERT_TRUE(choices.find("c"));
  EXPECT_EQ(*choices.find("c"), std::nullopt) << "libtorch was chosen";
  EXPECT_FALSE(choices.find("a"));
}

TEST(ProductChoices, AreTriedOnceAndWithinTheirTime) {
  ProductChoices choices({.known = {{"a", std::nullopt}}, .seconds = 1});
  EXPECT_FALSE(choices.tries("a"));
  EXPECT_TRUE(choices.tries("b"));
  choices.choose("b", kTwo, std::vector{1.0, 0.9, 0.8}, 0.6);
  EXPECT_FALSE(choices.tries("b"));
  EXPECT_TRUE(choices.tries("c"));
  choices.choose("c", kTwo, std::vector{1.0, 0.9, 0.8}, 0.6);
  EXPECT_FALSE(choices.tries("d")) << "the time is over";
  ProductChoices settled({});
  settled.settle({});
  EXPECT_FALSE(settled.tries("a"));
  const ProductChoices none({.tries = false});
  EXPECT_FALSE(none.tries("a"));
  EXPECT_TRUE(none.is_settled());
}

TEST(ProductChoices, BelongToADevice) {
  const at::Device first(at::kCUDA, 0), second(at::kCUDA, 1);
  const auto choices = std::make_shared<ProductChoices>(ProductChoices::Options{});
  set_product_choices(first, choices);
  EXPECT_EQ(product_choices(first), choices.get());
  EXPECT_EQ(product_choices(second), nullptr);
  EXPECT_EQ(product_choices(at::Device(at::kCPU)), nullptr);
  set_product_choices(first, nullptr);
  EXPECT_EQ(product_choices(first), nullptr);
}

}  // namespace
}  // namespace fsdp::kernels
