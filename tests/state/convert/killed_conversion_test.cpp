// Conversions that are killed at random moments: nothing torn under the output's name, and the next run goes
// through and leaves nothing behind.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <random>
#include <thread>

#include "state/convert/diff.h"
#include "state/convert/inspect.h"
#include "support/checkpoint_fixtures.h"
#include "support/run_program.h"

namespace fsdp::checkpoint {
namespace {

namespace fs = std::filesystem;
using namespace fsdp::testing;

/// All but the empty files of processes that were killed in the microseconds in which they tried the folder.
std::vector<fs::path> entries_but_probes(const fs::path& folder) {
  std::vector<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!entry.path().filename().string().starts_with(".probe-")) entries.push_back(entry.path());
  }
  return entries;
}

/// Throws or fails unless `output` is a whole conversion of `step`.
void expect_whole(const fs::path& output, const fs::path& step) {
  if (fs::exists(output / kManifestName)) {
    EXPECT_THAT(find_damage(output), ::testing::IsEmpty());
  }
  Difference difference = diff(step, output, {});
  EXPECT_TRUE(difference.empty()) << diff_as_text(difference);
  if (fs::is_directory(output) && !fs::exists(output / kManifestName)) {
    EXPECT_TRUE(fs::exists(output / "config.json"));
  }
}

struct Conversion {
  const char* name;
  std::vector<std::string> before, after;  ///< arguments before and after the checkpoint and the output
  const char* output;
  friend void PrintTo(const Conversion& conversion, std::ostream* out) { *out << conversion.name; }
};

class KilledConversion : public ::testing::TestWithParam<Conversion> {};

TEST_P(KilledConversion, LeavesNothingTornAndTheNextOneSucceeds) {
  constexpr int kKills = 10;
  const fs::path program = fs::read_symlink("/proc/self/exe").parent_path() / "fsdp-ckpt";
  ASSERT_TRUE(fs::exists(program)) << "build the target fsdp-ckpt first";
  TemporaryFolder root;
  NamedTensors tensors;
  for (int i = 0; i < 16; ++i) {
    tensors.emplace_back(concat("model/h.", i, ".w"), at::rand({1024, 1024}));  // 4 MiB each
  }
  const fs::path step = save_checkpoint(root.path() / "run", tensors, 2);
  const fs::path place = root.path() / "out", output = place / GetParam().output;
  std::vector<std::string> command = {program.string()};
  command.insert(command.end(), GetParam().before.begin(), GetParam().before.end());
  command.insert(command.end(), {step.string(), output.string()});
  command.insert(command.end(), GetParam().after.begin(), GetParam().after.end());

  ProgramResult whole = run(command);
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  expect_whole(output, step);
  fs::remove_all(place);

  std::mt19937 random(2025);
  double seconds = whole.seconds;  // the shortest so far: the first one may have had to share the machine
  for (int i = 0, killed = 0; killed < kKills; ++i) {
    ASSERT_LT(i, 10 * kKills) << "only " << killed << " were killed before they ended";
    RunningProgram running(command);
    std::this_thread::sleep_for(
        std::chrono::duration<double>(std::uniform_real_distribution(0.0, 1.1 * seconds)(random)));
    running.send(SIGKILL);
    ProgramResult result = running.wait();
    if (result.exit_code == 0) {
      seconds = std::min(seconds, result.seconds);
    } else {
      ++killed;
    }
    if (fs::exists(output)) {
      SCOPED_TRACE(concat("after kill ", i));
      expect_whole(output, step);
      fs::remove_all(output);
    } else {
      EXPECT_NE(result.exit_code, 0) << "kill " << i;
    }
  }

  ProgramResult last = run(command);
  EXPECT_EQ(last.exit_code, 0) << last.err;
  expect_whole(output, step);
  for (const fs::path& entry : entries_but_probes(place)) EXPECT_EQ(entry, output) << "left behind";
}

TEST(KilledReplacement, LeavesTheOldFolderOrTheNewOneWhole) {
  constexpr int kKills = 8;
  const fs::path program = fs::read_symlink("/proc/self/exe").parent_path() / "fsdp-ckpt";
  ASSERT_TRUE(fs::exists(program)) << "build the target fsdp-ckpt first";
  TemporaryFolder root;
  const auto saved = [&](const char* run) {
    NamedTensors tensors;
    for (int i = 0; i < 8; ++i) tensors.emplace_back(concat("model/h.", i, ".w"), at::rand({512, 1024}));
    return save_checkpoint(root.path() / run, tensors, 2);
  };
  const fs::path steps[] = {saved("a"), saved("b")}, place = root.path() / "out", output = place / "hf";
  const auto command = [&](const fs::path& step) -> std::vector<std::string> {
    return {program.string(), "consolidate",      "--force", step.string(),
            output.string(),  "--max-shard-size", "5MB"};
  };
  ProgramResult whole = run(command(steps[0]));
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  std::ofstream(output / "tokenizer.json") << "precious";

  std::mt19937 random(2026);
  std::uniform_real_distribution<double> moment(0.3 * whole.seconds, 1.1 * whole.seconds);
  for (int i = 0; i < kKills; ++i) {
    RunningProgram running(command(steps[(i + 1) % 2]));
    std::this_thread::sleep_for(std::chrono::duration<double>(moment(random)));
    running.send(SIGKILL);
    running.wait();
    SCOPED_TRACE(concat("after kill ", i));
    EXPECT_TRUE(diff(steps[0], output, {}).empty() || diff(steps[1], output, {}).empty());
    EXPECT_EQ(util::read_file(output / "tokenizer.json"), "precious");
  }
  ProgramResult last = run(command(steps[1]));
  EXPECT_EQ(last.exit_code, 0) << last.err;
  expect_whole(output, steps[1]);
  for (const fs::path& entry : entries_but_probes(place)) EXPECT_EQ(entry, output) << "left behind";
}

INSTANTIATE_TEST_SUITE_P(
    Checkpoint, KilledConversion,
    ::testing::Values(Conversion{"File", {"consolidate"}, {}, "w.safetensors"},
                      Conversion{"Folder", {"consolidate"}, {"--max-shard-size", "20MB"}, "hf"},
                      Conversion{"Full", {"consolidate"}, {"--format", "full"}, "full"},
                      Conversion{"Reshard", {"reshard"}, {"--world-size", "3"}, "step-00000100"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace fsdp::checkpoint
