#include "base/util/matrix_units.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdlib>

namespace fsdp::util {
namespace {

constexpr uint32_t kTiles = 1u << 24;

TEST(MatrixUnits, AreBrokenIfTilesAreAnnouncedButNotDescribed) {
  EXPECT_TRUE(announces_tiles_without_palettes({.features = kTiles, .highest_leaf = 0x1c, .palettes = 0}));
  EXPECT_FALSE(announces_tiles_without_palettes({.features = kTiles, .highest_leaf = 0x20, .palettes = 1}));
  EXPECT_FALSE(announces_tiles_without_palettes({.features = ~kTiles, .highest_leaf = 0x1c, .palettes = 0}));
}

TEST(MatrixUnits, AreNotUsedByOneDnnIfBroken) {
  keep_onednn_from_broken_tiles();
  if (!announces_tiles_without_palettes(cpu_identity())) GTEST_SKIP() << "this CPU's tiles are described";
  const char* named = std::getenv("DNNL_MAX_CPU_ISA");
  if (named == nullptr) named = std::getenv("ONEDNN_MAX_CPU_ISA");
  EXPECT_NE(named, nullptr);
}

TEST(MatrixUnits, Bf16ProductsRunOnThisCpu) {
  keep_onednn_from_broken_tiles();
  const at::Tensor x = at::ones({64, 64}, at::kBFloat16);
  EXPECT_EQ(at::mm(x, x).to(at::kFloat).sum().item<float>(), 64.0f * 64 * 64);
}

TEST(MatrixUnits, ArePresentOnlyIfAnnouncedAndCorrect) {
  if (!has_matrix_unit()) GTEST_SKIP() << "no matrix unit that this process may use";
  EXPECT_NE(cpu_identity().features & kTiles, 0u);
  EXPECT_TRUE(tiles_pass_a_trial());
}

TEST(MatrixUnits, AreTriedByAChildThatNobodyElseWaitsFor) {
  if ((cpu_identity().features & kTiles) == 0) GTEST_SKIP() << "no tiles";
  tiles_pass_a_trial();
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

}  // namespace
}  // namespace fsdp::util
