#pragma once

// A step of a sharded chain of matrices on fake devices, told as a StreamStory.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/util/error.h"
#include "comm/api/trace.h"
#include "comm/threads/thread_communicator.h"
#include "shard/engine/fully_shard.h"
#include "support/fake_collectives.h"
#include "support/stream_story.h"
#include "support/tiny_models.h"

namespace fsdp::testing {

/// Notes an operation of that name which reads `tensor`.
inline void mark(const at::Tensor& tensor, const std::string& what) {
  FakeDevice& fake = FakeDevice::get();
  fake.note_access(fake.current_stream(tensor.device().index()), tensor.const_data_ptr(), tensor.nbytes(),
                   FakeDevice::Access::kRead, what);
}

/// Attached around the hook of a unit, computes in front of the unit and tells the log where the backward of
/// that is: after that of the unit has ended, and before that of the unit in front begins.
class MarkInFront final : public nn::StageHook {
 public:
  explicit MarkInFront(std::string unit) : unit_(std::move(unit)) {}

  at::Tensor around(nn::Stage&, const at::Tensor& input, const Next& next) override {
    const at::Tensor same = input * 1;
    same.register_hook(
        [what = "backward in front of " + unit_](const at::Tensor& gradient) { mark(gradient, what); });
    return next(same);
  }

 private:
  std::string unit_;
};

/// Tells the log where the forward and the backward of a stage end.
class StageMarks final : public nn::StageHook {
 public:
  explicit StageMarks(std::string unit) : unit_(std::move(unit)) {}

  at::Tensor around(nn::Stage& stage, const at::Tensor& input, const Next& next) override {
    const at::Tensor weight = stage.parameters().front();
    if (input.requires_grad()) {
      input.register_hook([weight, what = "backward " + unit_](const at::Tensor&) { mark(weight, what); });
    }
    at::Tensor output = next(input);
    mark(weight, "forward " + unit_);
    return output;
  }

 private:
  std::string unit_;
};

struct StoryPlan {
  shard::ShardOptions options;
  int world_size = 2;
  comm::MeshOptions mesh{};
  int64_t layers = 3;
  /// The matrices that each step uses, in order; empty for all. The last step is told; usually the second,
  /// when the engine knows the order of units.
  std::vector<std::vector<size_t>> orders = {{}, {}};
  bool marks_in_front = false;  ///< of units, in backward
};

/// Forward and backward of rank 0's chain of matrices, each a unit, with a bias of the root.
inline StreamStory story_of_a_step(const StoryPlan& plan) {
  FakeDevice& fake = FakeDevice::get();
  fake.begin();
  std::vector<std::pair<size_t, std::string>> buffers;
  std::optional<size_t> begin;
  comm::run_ranks_as_threads(plan.world_size, [&](comm::Communicator& rank) {
    auto communicator = on_fake_device(rank);
    const at::Device device = communicator->device();
    auto trace = std::make_shared<comm::Trace>();
    ChainStage chain(plan.layers, 4);
    move_parameters(chain, device);
    for (size_t i = 0; plan.marks_in_front && i < chain.size(); ++i) {
      chain.layer(i).attach(std::make_shared<MarkInFront>(concat("layers.", i)));
    }
    auto engine = shard::fully_shard(chain, plan.options, comm::Mesh(plan.mesh, communicator), trace);
    for (size_t i = 0; i < chain.size(); ++i) {
      chain.layer(i).attach(std::make_shared<StageMarks>(concat("layers.", i)));
    }
    const at::Tensor input = at::full({2, 4}, 0.1f * static_cast<float>(rank.rank() + 1)).to(device);
    const auto last = static_cast<int64_t>(plan.orders.size());
    for (int64_t step = 1; step <= last; ++step) {
      chain.order = plan.orders[static_cast<size_t>(step - 1)];
      engine->zero_gradients();
      trace->begin_step(step);
      const bool told = step == last && rank.rank() == 0;
      if (told) {
        fake.observe([&begin, &buffers, trace, last](size_t entry) {
          if (!begin) begin = entry;
          const auto events = trace->events(last);
          while (buffers.size() < events.size()) {
            const auto& event = events[buffers.size()];
            const bool parameters = std::string(event.buffer_kind) == "parameters";
            buffers.emplace_back(
                entry, concat(event.pass_or_event, " ", parameters ? "" : concat(event.buffer_kind, " of "),
                              event.unit));
          }
        });
      }
      chain.forward(input).sum().backward();
      if (!told) continue;
      fake.note_access(fake.current_stream(0), nullptr, 0, FakeDevice::Access::kRead, "end of the step");
      fake.observe(nullptr);
    }
  });
  return StreamStory(0, fake.log(), begin.value(), buffers);
}

}  // namespace fsdp::testing
