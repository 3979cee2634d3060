// scripts/follow_metrics with a module that stands in for wandb.

#include <gtest/gtest.h>

#include "e2e/programs.h"
#include "support/source_folder.h"

namespace fsdp::e2e {
namespace {

/// Prints what it is told.
constexpr const char* kWandb = R"(
class Run:
    resumed, summary = False, {}
    def define_metric(self, *arguments, **options): pass
    def log(self, values): print("log", values, flush=True)
    def finish(self): print("finish", flush=True)

def init(project, name, id, resume, config):
    print("init", project, name, config["optimizer"], flush=True)
    return Run()
)";

TEST(FollowMetrics, LogsEachWholeLineOnceAndEndsWithTheRun) {
  if (testing::run({"sh", "-c", "python3 -c 'import tomllib'"}).exit_code != 0) {
    GTEST_SKIP() << "needs Python 3.11";
  }
  testing::TemporaryFolder folder;
  std::filesystem::create_directory(folder / "run");
  std::ofstream(folder / "wandb.py") << kWandb;
  std::ofstream(folder / "run/config.toml") << "[run]\nname = \"odd\"\n[training]\nsteps = 3\n[optimizer]\n"
                                               "lr = 0.5\n[data]\nvalidation = [\"some.bin\"]\n";
  const auto append = [&](const std::string& text) {
    std::ofstream(folder / "run/metrics.jsonl", std::ios::app) << text;
  };
  append("{\"step\":1,\"loss\":4.5}\n{\"step\":2,\"lo");
  testing::RunningProgram following(
      {testing::source_folder() + "/scripts/follow_metrics", (folder / "run").string(), "--to", "wandb"},
      {.env = {{"PYTHONPATH", folder.path().string()}}});
  ASSERT_TRUE(following.wait_for("4.5")) << following.err();
  append("ss\":4.25}\n{\"step\":3,\"loss\":4.0}\n");
  ASSERT_TRUE(following.wait_for("4.0")) << following.err();
  append("{\"step\":3,\"validation_loss\":4.75}\n");
  const auto result = following.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out,
            "init fsdp odd-run {'lr': 0.5}\n"
            "log {'step': 1, 'loss': 4.5}\n"
            "log {'step': 2, 'loss': 4.25}\n"
            "log {'step': 3, 'loss': 4.0}\n"
            "log {'step': 3, 'validation_loss': 4.75}\n"
            "finish\n");
}

}  // namespace
}  // namespace fsdp::e2e
