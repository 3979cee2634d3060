#include "tools/launch/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <string>

#include "base/util/error.h"
#include "support/run_program.h"
#include "support/temporary_folder.h"
#include "tools/launch/worker_environment.h"

namespace fsdp::launch {
namespace {

ProcessSpec shell(const std::string& script) {
  return {.argv = {"/bin/sh", "-c", script}, .environment = current_environment()};
}

std::string read_all(const Descriptor& pipe) {
  std::string text;
  char buffer[4096];
  for (;;) {
    pollfd entry{pipe.get(), POLLIN, 0};
    if (::poll(&entry, 1, 10000) <= 0) break;
    const ssize_t count = ::read(pipe.get(), buffer, sizeof(buffer));
    if (count <= 0) break;
    text.append(buffer, static_cast<size_t>(count));
  }
  return text;
}

ErrorKind kind_of_failure(const ProcessSpec& spec) {
  try {
    spawn(spec);
  } catch (const util::Error& error) {
    EXPECT_NE(std::string(error.what()).find(spec.argv[0]), std::string::npos) << error.what();
    return error.kind();
  }
  return ErrorKind::kUnexpected;
}

TEST(Process, CapturesOutputAndExitCode) {
  Process process = spawn(shell("echo out; echo err >&2; exit 3"));
  EXPECT_EQ(read_all(process.out), "out\n");
  EXPECT_EQ(read_all(process.err), "err\n");
  EXPECT_EQ(wait_and_reap(process.pid), (ExitStatus{.exit_code = 3}));
}

TEST(Process, ReportsTheSignalThatEndedIt) {
  Process process = spawn(shell("kill -SEGV $$"));
  const ExitStatus status = wait_and_reap(process.pid);
  EXPECT_EQ(status.signal, SIGSEGV);
  EXPECT_EQ(status.code(), 139);
}

TEST(Process, IsNotReapedWhileItRuns) {
  Process process = spawn(shell("sleep 100"));
  EXPECT_FALSE(reap(process.pid));
  signal_group(process.pid, SIGKILL);
  EXPECT_EQ(wait_and_reap(process.pid).signal, SIGKILL);
}

TEST(Process, RefusesWhatCannotBeExecuted) {
  testing::TemporaryFolder folder;
  const std::string plain = folder.path() / "plain.txt";
  ::close(::open(plain.c_str(), O_CREAT | O_WRONLY, 0644));
  for (const std::string& program : {std::string("/nonexistent/program"), std::string("no-such-program-here"),
                                     plain, folder.path().string()}) {
    ProcessSpec spec{.argv = {program}, .environment = current_environment()};
    EXPECT_EQ(kind_of_failure(spec), ErrorKind::kUsage) << program;
  }
}

TEST(Process, ReadsNothingFromStdinUnlessItInheritsIt) {
  Process process = spawn(shell("cat; echo end"));
  EXPECT_EQ(read_all(process.out), "end\n");
  wait_and_reap(process.pid);
}

TEST(Process, InheritsNeitherBlockedSignalsNorDescriptors) {
  sigset_t blocked, before;
  sigfillset(&blocked);
  sigprocmask(SIG_BLOCK, &blocked, &before);
  Process first = spawn(shell("sleep 100"));  // its pipes are open in this process now
  Process process = spawn({.argv = {"/bin/ls", "-l", "/proc/self/fd"}, .environment = current_environment()});
  Process mask =
      spawn({.argv = {"/bin/grep", "SigBlk", "/proc/self/status"}, .environment = current_environment()});
  sigprocmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(read_all(mask.out), "SigBlk:\t0000000000000000\n");
  // What this process itself was started with is passed on; the pipes of the workers are not.
  const std::string listed = read_all(process.out);
  EXPECT_NE(listed.find("/dev/null"), std::string::npos);
  for (int fd : {first.out.get(), first.err.get()}) {
    const std::string pipe = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd));
    EXPECT_EQ(listed.find(pipe), std::string::npos) << pipe << " in\n" << listed;
  }
  signal_group(first.pid, SIGKILL);
  for (const Process* ended : {&first, &process, &mask}) wait_and_reap(ended->pid);
}

TEST(Process, TakesWhatItLeavesInItsGroupAlong) {
  Process process = spawn(shell("sleep 100 >/dev/null 2>&1 & echo $!; exit 0"));
  const pid_t grandchild = std::stoi(read_all(process.out));
  wait_and_reap(process.pid);
  EXPECT_TRUE(testing::eventually([&] { return !testing::process_runs(grandchild); }));
}

}  // namespace
}  // namespace fsdp::launch
