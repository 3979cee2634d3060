#include "run/train/product_trials.h"

#include <gtest/gtest.h>

#include <exception>
#include <string>

namespace fsdp::train {
namespace {

using kernels::ChosenProducts;
using kernels::ProductAlgorithm;

constexpr const char* kLibrary = "GPU, cublasLt 1";
const ChosenProducts kChosen{{"a", ProductAlgorithm{1, 2, 3, 4, 5, 6, 7, ~uint64_t{0}}}, {"b", std::nullopt}};

TEST(ProductTrials, ChoicesAreReadAsWritten) {
  EXPECT_EQ(choices_in(text_of_choices(kChosen, kLibrary), kLibrary), kChosen);
  EXPECT_EQ(choices_in(text_of_choices({}, kLibrary), kLibrary), ChosenProducts{});
}

TEST(ProductTrials, ChoicesForAnotherLibraryAndSpoiledOnesAreRefused) {
  const std::string text = text_of_choices(kChosen, kLibrary);
  EXPECT_THROW(choices_in(text, "GPU, cublasLt 2"), Error);
  const std::string begin = R"({"library": "GPU, cublasLt 1", "products": )";
  for (const std::string& spoiled :
       {std::string(), std::string("{}"), std::string("[1]"), text.substr(0, text.size() / 2),
        begin + R"({"a": [1, 2]}})", begin + R"({"b": null, "a": "x"}})", begin + R"({"a": {"b": 1}}})",
        begin + R"({"a": [1, 2, 3, 4, 5, 6, 7, -1]}})", begin + R"({"a": [1, 2, 3, 4, 5, 6, 7, 1.5]}})",
        begin + R"({"a": [1, 2, 3, 4, 5, 6, 7, 18446744073709551616]}})", begin + "[[1]]}", begin + "3}",
        std::string(R"({"library": 1, "products": {}})"), std::string(R"({"library": "GPU, cublasLt 1"})")}) {
    EXPECT_THROW(choices_in(spoiled, kLibrary), std::exception) << spoiled;
  }
}

}  // namespace
}  // namespace fsdp::train
