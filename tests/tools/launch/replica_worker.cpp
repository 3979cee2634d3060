// replica_worker FOLDER STEPS MILLISECONDS: a stand-in for a trainer under fsdp-launch --replica-size. Its
// steps are sums over files in FOLDER, which stand for messages between ranks:
//
//   pid.RANK                        the pids of the processes of that rank of the run, a line each
//   build.EPOCH.RANK                a rank of an epoch has come
//   state.EPOCH.RANK                a source's state, for those behind
//   sum.EPOCH.STEP.RANK             what a rank contributes to a step, and whether it was told to pause
//   checkpoint                      step and state
//   steps.RANK                      a line for each step that the rank has finished: "EPOCH STEP"
//   final.RANK                      the state in the end
//
// FOLDER/delay.RANK has a number of milliseconds that this rank waits before it is ready.

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "base/util/error.h"
#include "tools/launch/replica_steps.h"
#include "tools/launch/worker_channel.h"

namespace fsdp::testing {
namespace {

constexpr double kTimeoutSeconds = 1;  ///< of waiting for other ranks

class Worker {
 public:
  Worker(std::string folder, int64_t steps, int milliseconds)
      : folder_(std::move(folder)),
        steps_(steps),
        pause_(milliseconds),
        home_(std::stoi(std::getenv("RANK"))) {}

  int run() {
    const auto channel = launch::WorkerChannel::from_environment();
    if (!channel) fail(ErrorKind::kUsage, "start this program under fsdp-launch --replica-size");
    channel_ = channel.get();
    std::ofstream(path("pid", home_), std::ios::app) << ::getpid() << "\n";
    int delay = 0;
    std::ifstream(path("delay", home_)) >> delay;
    std::this_thread::sleep_for(std::chrono::milliseconds(delay));
    auto epoch = channel_->ready({});
    while (epoch) {
      suspects_.clear();
      if (take_part(*epoch)) {
        write(path("final", home_), std::to_string(state_));
        return 0;
      }
      epoch =
          channel_->stopped({.step = step_, .can_finish_step = has_contributed_, .suspects = suspects_}, {});
    }
    return 1;
  }

 private:
  template <typename... Parts>
  std::string path(const char* what, Parts... parts) const {
    std::string name = folder_ + "/" + what;
    ((name += "." + std::to_string(parts)), ...);
    return name;
  }
  /// Whole, or not at all.
  void write(const std::string& path, const std::string& text) const {
    const std::string temporary = path + ".tmp" + std::to_string(home_);
    std::ofstream(temporary) << text;
    std::rename(temporary.c_str(), path.c_str());
  }
  static bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }
  template <typename Value>
  static Value read(const std::string& path) {
    Value value{};
    std::ifstream(path) >> value;
    return value;
  }

  /// Waits for the files of all ranks of the epoch; false if that is in vain.
  template <typename PathOf>
  bool await(int world_size, PathOf&& path_of) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(kTimeoutSeconds);
    while (true) {
      suspects_.clear();
      for (int rank = 0; rank < world_size; ++rank) {
        if (!exists(path_of(rank))) suspects_.push_back(rank);
      }
      if (suspects_.empty()) return true;
      if (channel_->is_broken_off() || std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  /// Returns whether all steps are done.
  bool take_part(const launch::Epoch& epoch) {
    if (has_contributed_ && epoch.step == step_ + 1) finish_step();
    has_contributed_ = false;
    epoch_ = epoch;
    rank_ = epoch.rank_of(home_);
    const int world_size = epoch.world_size();
    if (epoch.step < 0) {
      step_ = 0;
      state_ = 0;
      std::ifstream(folder_ + "/checkpoint") >> step_ >> state_;
    }
    const int index = home_ % epoch.replica_size;
    const int source = epoch.step < 0 ? -1 : epoch.sources.at(static_cast<size_t>(index));
    if (rank_ == source) write(path("state", epoch.number, rank_), std::to_string(state_));
    write(path("build", epoch.number, rank_), "");
    if (!await(world_size, [&](int rank) { return path("build", epoch.number, rank); })) return false;
    for (int rank : epoch.behind) {
      if (rank != rank_) continue;
      state_ = read<uint64_t>(path("state", epoch.number, source));
      step_ = epoch.step;
    }
    while (step_ < steps_) {
      std::this_thread::sleep_for(pause_);
      write(path("sum", epoch.number, step_ + 1, rank_),
            std::to_string(contribution(step_ + 1, rank_, world_size)) +
                (channel_->change_is_due() ? " 1" : " 0"));
      has_contributed_ = true;
      const auto sum_of = [&](int rank) { return path("sum", epoch.number, step_ + 1, rank); };
      if (!await(world_size, sum_of)) return false;
      const bool pauses = finish_step();
      if (rank_ == 0 && step_ % 10 == 0) {
        write(folder_ + "/checkpoint", std::to_string(step_) + " " + std::to_string(state_));
      }
      if (pauses) return false;
    }
    return true;
  }

  /// All contributions are there. Returns whether some rank was told to pause: then all do, after this step.
  bool finish_step() {
    uint64_t sum = 0;
    bool pauses = false;
    for (int rank = 0; rank < epoch_.world_size(); ++rank) {
      uint64_t contributed = 0;
      int pause = 0;
      std::ifstream(path("sum", epoch_.number, step_ + 1, rank)) >> contributed >> pause;
      sum += contributed;
      pauses |= pause != 0;
    }
    ++step_;
    state_ = mixed(state_, sum);
    has_contributed_ = false;
    std::ofstream(path("steps", home_), std::ios::app) << epoch_.number << " " << step_ << "\n";
    return pauses;
  }

  const std::string folder_;
  const int64_t steps_;
  const std::chrono::milliseconds pause_;
  const int home_;
  launch::WorkerChannel* channel_ = nullptr;
  launch::Epoch epoch_;
  int rank_ = 0;
  int64_t step_ = -1;
  uint64_t state_ = 0;
  bool has_contributed_ = false;  ///< to the step after step_
  std::vector<int> suspects_;
};

}  // namespace
}  // namespace fsdp::testing

int main(int, char** argv) {
  try {
    return fsdp::testing::Worker(argv[1], std::stoll(argv[2]), std::stoi(argv[3])).run();
  } catch (const fsdp::util::Error& error) {
    std::cerr << error.what() << "\n";
    return static_cast<int>(error.kind());
  }
}
