#include "tools/launch/orphan_guard.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "support/run_program.h"
#include "support/temporary_folder.h"
#include "tools/launch/process.h"
#include "tools/launch/worker_environment.h"

namespace fsdp::launch {
namespace {

using testing::eventually;
using testing::process_runs;

Process marked_sleep(const std::string& marks) {
  auto environment = current_environment();
  environment.push_back(std::string(OrphanGuard::kVariable) + "=" + marks);
  return spawn({.argv = {"/bin/sleep", "100"}, .environment = environment});
}

TEST(OrphanGuard, EndsWhatCarriesItsMarkAndNothingElse) {
  const OrphanGuard guard, other;
  Process marked = marked_sleep(guard.marks()), nested = marked_sleep(guard.marks() + ":inner"),
          foreign = marked_sleep(other.marks());
  guard.end_marked();
  EXPECT_EQ(wait_and_reap(marked.pid).signal, SIGKILL);
  EXPECT_EQ(wait_and_reap(nested.pid).signal, SIGKILL);
  EXPECT_FALSE(reap(foreign.pid));
  other.end_marked();
  wait_and_reap(foreign.pid);
}

TEST(OrphanGuard, KeepsTheMarksOfLaunchersAbove) {
  ::setenv(OrphanGuard::kVariable, "above", 1);
  const OrphanGuard guard;
  ::unsetenv(OrphanGuard::kVariable);
  EXPECT_TRUE(guard.marks().starts_with("above:"));
}

TEST(OrphanGuard, ActsWhenTheLauncherIsKilled) {
  testing::TemporaryFolder folder;
  const auto left = folder.path() / "left";
  std::filesystem::create_directory(left);
  int pids[2];
  ASSERT_EQ(::pipe(pids), 0);
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    const OrphanGuard guard(left);
    // In a session of its own, with a parent that is gone: neither its group nor its parent's death finds it.
    auto environment = current_environment();
    environment.push_back(std::string(OrphanGuard::kVariable) + "=" + guard.marks());
    Process process = spawn({.argv = {"/bin/sh", "-c", "setsid sleep 100 >/dev/null 2>&1 & echo $!; wait"},
                             .environment = environment});
    ::usleep(200000);
    char text[32];
    const ssize_t count = ::read(process.out.get(), text, sizeof(text));
    [[maybe_unused]] ssize_t written = ::write(pids[1], text, count > 0 ? static_cast<size_t>(count) : 0);
    ::kill(::getpid(), SIGKILL);
  }
  ::close(pids[1]);
  char text[32] = "";
  ASSERT_GT(::read(pids[0], text, sizeof(text) - 1), 0);
  ::close(pids[0]);
  const pid_t daemon = std::stoi(text);
  ::waitpid(launcher, nullptr, 0);
  EXPECT_TRUE(eventually([&] { return !process_runs(daemon); }));
  EXPECT_TRUE(eventually([&] { return !std::filesystem::exists(left); }));
}

}  // namespace
}  // namespace fsdp::launch
