// The race detector of the fake device finds the races of a defective communicator, so the expectations of
// device_test.cpp and stream_order_test.cpp can fail.

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "shard/engine/fully_shard.h"
#include "support/fake_collectives.h"
#include "support/sharded_run.h"
#include "support/told_step.h"

namespace fsdp::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// A wait that does nothing, although it releases what a real one would.
class ForgottenWork final : public comm::Work {
 public:
  explicit ForgottenWork(std::unique_ptr<comm::Work> work) : work_(std::move(work)) {}
  void wait() override {}

 private:
  std::unique_ptr<comm::Work> work_;
};

struct Defects {
  bool releases_at_once = false;    ///< memory is given back when the host is there, not the stream
  bool forgets_gathers = false;     ///< the compute does not wait for them
  bool forgets_reductions = false;  ///< nor for reductions, whose input is given back
};

class DefectiveCommunicator final : public ForwardingCommunicator {
 public:
  DefectiveCommunicator(std::shared_ptr<comm::Communicator> inner, const Defects& defects)
      : ForwardingCommunicator(std::move(inner)), defects_(defects) {}

  std::unique_ptr<comm::Work> all_gather(const at::Tensor& output, const at::Tensor& input,
                                         const comm::CallSite& site) override {
    return forgotten(defects_.forgets_gathers, inner().all_gather(output, input, site));
  }
  std::unique_ptr<comm::Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                             const comm::CallSite& site) override {
    return forgotten(defects_.forgets_reductions, inner().reduce_scatter(output, input, site));
  }
  std::unique_ptr<comm::Work> enqueue_release(std::function<void()> task) override {
    if (!defects_.releases_at_once && !defects_.forgets_reductions)
      return inner().enqueue_release(std::move(task));
    task();
    return comm::done_work();
  }

 protected:
  std::shared_ptr<comm::Communicator> around(std::shared_ptr<comm::Communicator> group) override {
    return std::make_shared<DefectiveCommunicator>(std::move(group), defects_);
  }

 private:
  static std::unique_ptr<comm::Work> forgotten(bool forgets, std::unique_ptr<comm::Work> work) {
    return forgets ? std::make_unique<ForgottenWork>(std::move(work)) : std::move(work);
  }

  Defects defects_;
};

/// Collectives that start on a separate stream without waiting for the current one, which waits for them.
class HastyCollectives final : public ForwardingCommunicator {
 public:
  HastyCollectives(at::Device device, std::shared_ptr<comm::Communicator> inner)
      : ForwardingCommunicator(std::move(inner)),
        device_(device),
        own_(FakeDevice::get().new_stream(device.index())) {}

  at::Device device() const override { return device_; }
  std::unique_ptr<comm::Work> all_gather(const at::Tensor& output, const at::Tensor& input,
                                         const comm::CallSite& site) override {
    {
      const c10::StreamGuard on(own_);
      inner().all_gather(output, input, site)->wait();
    }
    c10::Event done(device_.type());
    done.record(own_);
    done.block(FakeDevice::get().current_stream(device_.index()));
    return comm::done_work();
  }

 private:
  at::Device device_;
  c10::Stream own_;
};

RunPlan race_plan() {
  RunPlan plan;
  plan.model.fused_kernels = false;
  plan.shard.min_num_params = 1;
  plan.global_rows = 8;
  plan.steps = 2;
  return plan;
}

struct RaceOutcome {
  std::vector<std::string> races;
  RunResult run;
};

RaceOutcome train(RunPlan plan,
                  const std::function<std::shared_ptr<comm::Communicator>(comm::Communicator&)>& interpose) {
  plan.interpose = interpose;
  FakeDevice::get().begin();
  RaceOutcome outcome{.races = {}, .run = train_sharded(2, plan)};
  outcome.races = FakeDevice::get().races();
  return outcome;
}

RaceOutcome train_with(const Defects& defects, const RunPlan& plan = race_plan()) {
  return train(plan, [defects](comm::Communicator& rank) {
    return std::make_shared<DefectiveCommunicator>(on_fake_device(rank), defects);
  });
}

TEST(DeviceRaces, AreNotFoundWhereNothingIsDefective) {
  EXPECT_THAT(train_with({}).races, IsEmpty());
  RunPlan offloading = race_plan();
  offloading.shard.cpu_offload = offloading.shard.move_grads_to_cpu = true;
  EXPECT_THAT(train_with({}, offloading).races, IsEmpty());
}

TEST(DeviceRaces, AreFoundWhenMemoryIsGivenBackAtOnce) {
  EXPECT_THAT(train_with({.releases_at_once = true}).races,
              Contains(HasSubstr("the same memory in no order")));
}

TEST(DeviceRaces, AreFoundWhenTheComputeDoesNotWaitForGathers) {
  EXPECT_THAT(
      train_with({.forgets_gathers = true}).races,
      Contains(AllOf(HasSubstr("all_gather of "), HasSubstr("writes"), HasSubstr("reads the same memory"))));
}

TEST(DeviceRaces, AreFoundWhenNobodyWaitsForReductions) {
  EXPECT_THAT(train_with({.forgets_reductions = true}).races,
              Contains(AllOf(HasSubstr("reduce_scatter of "), HasSubstr("reads"),
                             HasSubstr("writes the same memory"))));
}

TEST(DeviceRaces, AreFoundWhenAGatherDoesNotWaitForTheComputeBeforeIt) {
  const RaceOutcome outcome = train(race_plan(), [](comm::Communicator& rank) {
    const at::Device device = FakeDevice::get().device(rank.rank());
    return comm::make_device_communicator(
        {device, borrowed(rank),
         std::make_shared<HastyCollectives>(device, std::make_shared<FakeCollectives>(device, rank))});
  });
  // On the memory of a unit that is still computing, or on a shard that the optimizer writes.
  EXPECT_THAT(outcome.races, Contains(HasSubstr("all_gather of ")));
}

/// The gradient of a shard in host memory after backward().
at::Tensor gradient_on_the_host() {
  at::Tensor gradient;
  comm::run_ranks_as_threads(2, [&](comm::Communicator& rank) {
    auto communicator = on_fake_device(rank);
    ChainStage chain(2, 4);
    move_parameters(chain, communicator->device());
    shard::ShardOptions options;
    options.min_num_params = 1;
    options.cpu_offload = options.move_grads_to_cpu = true;
    auto engine = shard::fully_shard(chain, options, comm::Mesh({}, communicator));
    chain.forward(at::ones({2, 4}).to(communicator->device())).sum().backward();
    const at::Tensor& there = engine->units()[1]->storage().shard_gradient();
    if (rank.rank() == 0) gradient = there.clone();
  });
  return gradient;
}

// Accesses by the host are not recorded; it finds memory to which nothing has been copied.
TEST(DeviceRaces, ShowInTheNumbersWhenTheHostDoesNotWaitForGradients) {
  FakeDevice& fake = FakeDevice::get();
  fake.begin();
  const at::Tensor waited = gradient_on_the_host();
  EXPECT_TRUE(waited.is_cpu() && waited.isfinite().all().item<bool>());
  fake.set_host_forgets_events(true);
  const at::Tensor forgotten = gradient_on_the_host();
  fake.set_host_forgets_events(false);
  EXPECT_TRUE(forgotten.isnan().any().item<bool>());
}

}  // namespace
}  // namespace fsdp::testing
