#include "run/train/tensorboard.h"

#include <gtest/gtest.h>

#include "base/util/file.h"
#include "support/temporary_folder.h"

namespace fsdp::train {
namespace {

using testing::TemporaryFolder;

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    for (int shift : {4, 0}) text += "0123456789abcdef"[static_cast<uint8_t>(byte) >> shift & 15];
  }
  return text;
}

// Vectors made by TensorBoard's own RecordWriter and event_pb2.
TEST(TensorBoardFile, FramesARecordAsTensorFlowDoes) {
  EXPECT_EQ(hex(tensorboard::record("hello")), "0500000000000000eab2043e68656c6c6fbb1f1c19");
}

TEST(TensorBoardFile, EncodesScalarsAsTheProtocolBufferDoes) {
  EXPECT_EQ(
      hex(tensorboard::event_of_scalars(1.5, 300, {{"train/loss", 2.25}, {"train/lr", -0.5}})),
      "09000000000000f83f10ac022a240a110a0a747261696e2f6c6f737315000010400a0f0a08747261696e2f6c7215000000bf");
}

TEST(TensorBoardFile, PutsAnOlderRunAsideAndKeepsTheFilesOfAResumedOne) {
  TemporaryFolder folder;
  for (int64_t resumed_step : {0, 0, 5}) TensorBoardFile(folder / "tensorboard", resumed_step).write(6, {});
  auto files_in = [](const std::filesystem::path& path) {
    return std::distance(std::filesystem::directory_iterator(path), {});
  };
  EXPECT_EQ(files_in(folder / "tensorboard.1"), 1);
  EXPECT_EQ(files_in(folder / "tensorboard"), 2);
}

}  // namespace
}  // namespace fsdp::train
