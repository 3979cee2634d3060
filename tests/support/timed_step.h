#pragma once

// Steps of a chain of matrices whose compute and collectives take set times, beside what plan::StepClock says
// of them. Time is virtual (it passes where something computes or is waited for) or real (both sleep).

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/fake/fake_communicator.h"
#include "comm/threads/thread_communicator.h"
#include "shard/engine/engine_sizes.h"
#include "shard/engine/fully_shard.h"
#include "shard/units/nominal_pass.h"
#include "support/forwarding_communicator.h"
#include "support/tiny_models.h"
#include "tools/plan/time.h"

namespace fsdp::testing {

/// How long a step computes, and does nothing but wait for collectives.
struct StepSeconds {
  double computed = 0, exposed = 0;
};

class StepTime {
 public:
  virtual ~StepTime() = default;
  virtual void compute(double seconds) = 0;
  virtual double now() const = 0;
};

class VirtualTime final : public StepTime {
 public:
  using Job = plan::CommunicationStreams::Job;

  void compute(double seconds) override {
    now_ += seconds;
    while (seconds > 0) seconds -= streams_.pass(seconds);
  }
  double now() const override { return now_; }
  size_t new_number() { return ++numbers_; }  ///< of a stream or a link
  Job issue(size_t stream, size_t link, double seconds, Job after = 0) {
    return streams_.issue(stream, link, seconds, after);
  }
  void wait_for(Job job) {
    if (task_waits_for_ != nullptr) {
      *task_waits_for_ = job;
      return;
    }
    while (!streams_.is_done(job)) now_ += streams_.pass(std::numeric_limits<double>::infinity());
  }
  /// Runs `task` of another stream; returns what that waits for.
  Job run_task(const std::function<void()>& task) {
    Job job = 0;
    task_waits_for_ = &job;
    task();
    task_waits_for_ = nullptr;
    return job;
  }

 private:
  plan::CommunicationStreams streams_;
  double now_ = 0;
  size_t numbers_ = 0;
  Job* task_waits_for_ = nullptr;
};

class RealTime final : public StepTime {
 public:
  static void sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }
  void compute(double seconds) override { sleep(seconds); }
  double now() const override {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
};

/// Gives each collective the time that plan::MachineSpeed says: `pass(work, seconds)` makes a Work of that.
class TimedCommunicator : public ForwardingCommunicator {
 public:
  using Work = std::unique_ptr<comm::Work>;

  TimedCommunicator(std::shared_ptr<comm::Communicator> inner, plan::MachineSpeed speed)
      : ForwardingCommunicator(std::move(inner)), speed_(speed) {}

  Work all_gather(const at::Tensor& output, const at::Tensor& input, const comm::CallSite& site) override {
    return pass(inner().all_gather(output, input, site), shards_seconds(input, site));
  }
  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                      const comm::CallSite& site) override {
    return pass(inner().reduce_scatter(output, input, site), shards_seconds(output, site));
  }
  Work reduce_scatter_and_finish(const at::Tensor& output, const at::Tensor& input, comm::FinishSums finish,
                                 const comm::CallSite& site) override {
    return pass(inner().reduce_scatter_and_finish(output, input, std::move(finish), site),
                shards_seconds(output, site));
  }
  Work all_reduce(const at::Tensor& tensor, comm::ReduceOp op, const comm::CallSite& site) override {
    const double ranks = world_size();
    const double bytes = 2 * (ranks - 1) / ranks * static_cast<double>(tensor.nbytes());
    return pass(inner().all_reduce(tensor, op, site),
                speed_.latency_seconds + bytes / speed_.replica_bytes_per_second);
  }

 protected:
  virtual Work pass(Work work, double seconds) = 0;
  const plan::MachineSpeed& speed() const { return speed_; }

 private:
  double shards_seconds(const at::Tensor& shard, const comm::CallSite& site) const {
    const bool is_between = site.pass == std::string(shard::kBetweenSlices);
    return speed_.latency_seconds +
           static_cast<double>(shard.nbytes()) * (world_size() - 1) /
               (is_between ? speed_.replica_bytes_per_second : speed_.bytes_per_second);
  }

  plan::MachineSpeed speed_;
};

/// Over a communicator that is done at the call; a stream of its own in virtual time. Groups of the same
/// ranks share a link.
class VirtuallyTimedCommunicator final : public TimedCommunicator {
 public:
  VirtuallyTimedCommunicator(std::shared_ptr<comm::Communicator> inner, const plan::MachineSpeed& speed,
                             std::shared_ptr<VirtualTime> time)
      : VirtuallyTimedCommunicator(std::move(inner), speed, time, time->new_number()) {}
  VirtuallyTimedCommunicator(std::shared_ptr<comm::Communicator> inner, const plan::MachineSpeed& speed,
                             std::shared_ptr<VirtualTime> time, size_t link)
      : TimedCommunicator(std::move(inner), speed),
        time_(std::move(time)),
        link_(link),
        stream_(time_->new_number()) {}

  Work all_gather(const at::Tensor& output, const at::Tensor& input, const comm::CallSite& site) override {
    Work work = TimedCommunicator::all_gather(output, input, site);
    if (site.unit == "execution order") output.fill_(input.item());  // the absent ranks agree
    return work;
  }
  Work enqueue(std::function<void()> task) override { return until(0, time_->run_task(task)); }
  Work enqueue_release(std::function<void()> task) override { return enqueue(std::move(task)); }

 protected:
  Work pass(Work work, double seconds) override {
    work->wait();
    return until(seconds, 0);
  }
  std::shared_ptr<comm::Communicator> around(std::shared_ptr<comm::Communicator> group) override {
    const size_t link = group->world_size() == world_size() ? link_ : time_->new_number();
    return std::make_shared<VirtuallyTimedCommunicator>(std::move(group), speed(), time_, link);
  }

 private:
  class Until final : public comm::Work {
   public:
    Until(std::shared_ptr<VirtualTime> time, VirtualTime::Job job) : time_(std::move(time)), job_(job) {}
    void wait() override { time_->wait_for(job_); }

   private:
    std::shared_ptr<VirtualTime> time_;
    VirtualTime::Job job_;
  };

  Work until(double seconds, VirtualTime::Job after) {
    return std::make_unique<Until>(time_, time_->issue(stream_, link_, seconds, after));
  }

  std::shared_ptr<VirtualTime> time_;
  size_t link_, stream_;
};

/// Over a communicator with a communication thread, which sleeps.
class SleepingCommunicator final : public TimedCommunicator {
 public:
  using TimedCommunicator::TimedCommunicator;

 protected:
  Work pass(Work, double seconds) override {
    return inner().enqueue([seconds] { RealTime::sleep(seconds); });
  }
  std::shared_ptr<comm::Communicator> around(std::shared_ptr<comm::Communicator> group) override {
    return std::make_shared<SleepingCommunicator>(std::move(group), speed());
  }
};

/// Spends time in the forward and the backward of a stage.
class TimedCompute final : public nn::StageHook {
 public:
  TimedCompute(std::shared_ptr<StepTime> time, double forward, double backward)
      : time_(std::move(time)), forward_(forward), backward_(backward) {}

  at::Tensor around(nn::Stage&, const at::Tensor& input, const Next& next) override {
    time_->compute(forward_);
    if (input.requires_grad()) {
      input.register_hook([time = time_, seconds = backward_](const at::Tensor&) { time->compute(seconds); });
    }
    return next(input);
  }

 private:
  std::shared_ptr<StepTime> time_;
  double forward_, backward_;
};

/// Makes the output of a stage its own, as that of most models is; a chain's is that of its last layer.
class OwnOutput final : public nn::StageHook {
 public:
  at::Tensor around(nn::Stage&, const at::Tensor& input, const Next& next) override {
    return next(input).clone();
  }
};

struct TimedStep {
  shard::ShardOptions options;
  comm::MeshOptions mesh{};
  plan::MachineSpeed speed{};
  double forward = 0, backward = 0;  ///< seconds a unit computes
  int64_t layers = 5, width = 8;
};

/// What one rank measures in its third step, and what the clock says of it.
struct TimedResult {
  StepSeconds measured, planned;
};

inline StepSeconds planned_seconds(const TimedStep& step, const shard::Engine& engine) {
  const std::vector<shard::UnitSizes> units = shard::unit_sizes(engine);
  plan::StepClock clock(units, step.speed, step.options.reduce_scatter_group);
  shard::Schedule schedule(step.options, shard::scheduled_units(units), clock);
  const shard::NominalPass pass(units);
  const auto compute = [&](const shard::NominalPass::StageEvent& event, shard::Pass which) {
    if (event.unit == 0 || event.begins) return;
    clock.compute(which == shard::Pass::kForward ? step.forward : step.backward);
  };
  StepSeconds before;
  for (int i = 0; i < 2; ++i) {
    before = {clock.computed(), clock.exposed()};
    schedule.forget_gradients();
    pass.run(schedule, compute);
  }
  return {clock.computed() - before.computed, clock.exposed() - before.exposed};
}

inline TimedResult run_timed_steps(const TimedStep& step, std::shared_ptr<comm::Communicator> communicator,
                                   const std::shared_ptr<StepTime>& time) {
  ChainStage chain(step.layers, step.width);
  auto engine = shard::fully_shard(chain, step.options, comm::Mesh(step.mesh, std::move(communicator)));
  chain.attach(std::make_shared<OwnOutput>());
  for (size_t i = 0; i < chain.size(); ++i) {
    chain.layer(i).attach(std::make_shared<TimedCompute>(time, step.forward, step.backward));
  }
  const at::Tensor input = at::full({1, step.width}, 0.1f).requires_grad_(true);
  TimedResult result;
  for (int i = 0; i < 3; ++i) {
    engine->zero_gradients();
    const double begin = time->now();
    chain.forward(input).sum().backward();
    result.measured.computed = static_cast<double>(step.layers) * (step.forward + step.backward);
    result.measured.exposed = time->now() - begin - result.measured.computed;
  }
  result.planned = planned_seconds(step, *engine);
  return result;
}

/// Rank 0 of a world whose other ranks are not there, in virtual time.
inline TimedResult virtually_timed(const TimedStep& step, int world_size) {
  auto time = std::make_shared<VirtualTime>();
  auto communicator = std::make_shared<VirtuallyTimedCommunicator>(
      std::make_shared<comm::FakeCommunicator>(world_size), step.speed, time);
  return run_timed_steps(step, communicator, time);
}

/// Rank 0 of ranks that are threads, in real time.
inline TimedResult really_timed(const TimedStep& step, int world_size) {
  TimedResult result;
  comm::run_ranks_as_threads(world_size, [&](comm::Communicator& rank) {
    auto time = std::make_shared<RealTime>();
    auto communicator = std::make_shared<SleepingCommunicator>(borrowed(rank), step.speed);
    TimedResult own = run_timed_steps(step, communicator, time);
    if (rank.rank() == 0) result = own;
  });
  return result;
}

/// Each option that changes the order, with a name.
inline std::vector<std::pair<std::string, TimedStep>> timed_variants(const TimedStep& base) {
  std::vector<std::pair<std::string, TimedStep>> variants;
  const auto add = [&](const std::string& name, auto change) {
    variants.emplace_back(name, base);
    change(variants.back().second.options);
    variants.back().second.options.min_num_params = 1;
  };
  for (const char* forward : {"none", "implicit", "explicit"}) {
    for (const char* backward : {"none", "post", "pre"}) {
      for (bool limit : {true, false}) {
        if (!limit && std::string(forward) == "none") continue;
        add(std::string("forward ") + forward + ", backward " + backward + (limit ? "" : ", no limit"),
            [&](shard::ShardOptions& options) {
              options.forward_prefetch = forward;
              options.backward_prefetch = backward;
              options.limit_all_gathers = limit;
            });
      }
    }
  }
  for (const char* backward : {"none", "post", "pre"}) {
    add(std::string("reduce_scatter_group, backward ") + backward, [&](auto& o) {
      o.reduce_scatter_group = true;
      o.backward_prefetch = backward;
    });
  }
  add("reshard_after_forward = false", [](auto& o) { o.reshard_after_forward = false; });
  add("reshard_root_after_forward", [](auto& o) { o.reshard_root_after_forward = true; });
  add("reshard_last_after_forward", [](auto& o) { o.reshard_last_after_forward = true; });
  add("keep_after_forward", [](auto& o) { o.keep_after_forward = {"*.1", "*.3"}; });
  add("shard_grad_op", [](auto& o) { o.strategy = "shard_grad_op"; });
  add("no_shard", [](auto& o) { o.strategy = "no_shard"; });
  add("hybrid_shard", [](auto& o) { o.strategy = "hybrid_shard"; });
  variants.back().second.mesh.dcn = 2;
  add("hybrid_shard, hybrid_optimizer = global", [](auto& o) {
    o.strategy = "hybrid_shard";
    o.hybrid_optimizer = "global";
  });
  variants.back().second.mesh.dcn = 2;
  add("hybrid_shard, reduce_scatter_group", [](auto& o) {
    o.strategy = "hybrid_shard";
    o.reduce_scatter_group = true;
  });
  variants.back().second.mesh.dcn = 2;
  return variants;
}

}  // namespace fsdp::testing
