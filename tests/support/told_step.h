#pragma once

// A step of a sharded chain of matrices on fake devices, told as a StreamStory.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/thread_communicator.h"
#include "comm/trace.h"
#include "shard/fully_shard.h"
#include "support/fake_collectives.h"
#include "support/stream_story.h"
#include "support/tiny_models.h"
#include "util/error.h"

namespace fsdp::testing {

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
  static void mark(const at::Tensor& weight, const std::string& what) {
    FakeDevice& fake = FakeDevice::get();
    fake.note_access(fake.current_stream(weight.device().index()), weight.const_data_ptr(), weight.nbytes(),
                     FakeDevice::Access::kRead, what);
  }

  std::string unit_;
};

inline void move_parameters(nn::Stage& stage, at::Device device) {
  for (const auto& parameter : stage.named_parameters()) {
    parameter.value().set_data(parameter.value().to(device));
  }
}

struct StoryPlan {
  shard::ShardOptions options;
  int world_size = 2;
  comm::MeshOptions mesh{};
  int64_t layers = 3;
};

/// Forward and backward of rank 0's chain of matrices, each a unit, with a bias of the root. It is the second
/// step: by then the engine knows the order of units.
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
    auto engine = shard::fully_shard(chain, plan.options, comm::Mesh(plan.mesh, communicator), trace);
    for (size_t i = 0; i < chain.size(); ++i) {
      chain.layer(i).attach(std::make_shared<StageMarks>(util::concat("layers.", i)));
    }
    const at::Tensor input = at::full({2, 4}, 0.1f * static_cast<float>(rank.rank() + 1)).to(device);
    for (int64_t step = 1; step <= 2; ++step) {
      engine->zero_gradients();
      trace->begin_step(step);
      const bool told = step == 2 && rank.rank() == 0;
      if (told) {
        fake.observe([&begin, &buffers, trace](size_t entry) {
          if (!begin) begin = entry;
          const auto events = trace->events(2);
          while (buffers.size() < events.size()) {
            const auto& event = events[buffers.size()];
            const bool parameters = std::string(event.buffer_kind) == "parameters";
            buffers.emplace_back(
                entry, util::concat(event.pass_or_event, " ",
                                    parameters ? "" : util::concat(event.buffer_kind, " of "), event.unit));
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
