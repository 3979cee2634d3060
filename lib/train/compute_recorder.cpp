#include "train/compute_recorder.h"

#include <ATen/core/grad_mode.h>

#include "shard/autograd_hooks.h"
#include "util/error.h"

namespace fsdp::train {

struct ComputeRecorder::Record {
  std::shared_ptr<comm::Trace> trace;
  std::vector<ComputeSpan> spans;
  bool active = false;
  bool in_backward = false;
  size_t round = 0;  ///< of clear(); what began before it must not end after it

  size_t begin(const std::string& unit, ComputeSpan::Kind kind) {
    spans.push_back({.unit = unit, .kind = kind, .begin_us = trace->now_us(), .end_us = std::nullopt});
    return spans.size() - 1;
  }
};

/// Backward of a stage lies between two identities of the graph: one on the output, behind which the stage's
/// backward begins when the unit has been gathered, and one on the input.
class ComputeRecorder::Watch final : public nn::StageHook {
 public:
  Watch(std::shared_ptr<Record> record, std::string unit, bool is_model)
      : record_(std::move(record)), unit_(std::move(unit)), is_model_(is_model) {}

  at::Tensor around(nn::Stage&, const at::Tensor& input, const Next& next) override {
    if (!record_->active) return next(input);
    if (is_model_) record_->in_backward = false;  // the next micro-batch
    /// The backward that belongs to this forward.
    struct Backward {
      size_t round = 0;
      std::optional<size_t> span;
    };
    auto backward = std::make_shared<Backward>(Backward{record_->round, std::nullopt});
    bool recording = at::GradMode::is_enabled();
    at::Tensor inner = input;
    if (recording && inner.requires_grad()) {
      inner = shard::when_backward_ends(inner, [record = record_, backward] {
        if (backward->round != record->round || !backward->span) return;
        record->spans[*backward->span].end_us = record->trace->now_us();
      });
    }
    size_t span = record_->begin(
        unit_, record_->in_backward ? ComputeSpan::Kind::kRecomputation : ComputeSpan::Kind::kForward);
    at::Tensor output = next(inner);
    record_->spans[span].end_us = record_->trace->now_us();
    if (!recording || !output.requires_grad()) return output;
    return shard::when_backward_ends(output, [record = record_, backward, unit = unit_] {
      if (backward->round != record->round) return;
      record->in_backward = true;
      backward->span = record->begin(unit, ComputeSpan::Kind::kBackward);
    });
  }

 private:
  std::shared_ptr<Record> record_;
  std::string unit_;
  bool is_model_;
};

ComputeRecorder::ComputeRecorder(nn::Stage& model, const shard::Engine& engine,
                                 std::shared_ptr<comm::Trace> trace)
    : record_(std::make_shared<Record>()) {
  record_->trace = std::move(trace);
  auto modules = model.named_modules("", /*include_self=*/false);
  for (const auto& unit : engine.units()) {
    nn::Stage* stage = nullptr;
    if (unit.get() == engine.units().front().get()) {
      stage = &model;
    } else if (!engine.is_root(*unit)) {
      stage = dynamic_cast<nn::Stage*>(modules[unit->name()].get());
      FSDP_CHECK(stage != nullptr, unit->name());
    }
    if (stage != nullptr) stage->attach(std::make_shared<Watch>(record_, unit->name(), stage == &model));
  }
}

void ComputeRecorder::clear() {
  record_->spans.clear();
  record_->active = true;
  record_->in_backward = false;
  ++record_->round;
}

const std::vector<ComputeSpan>& ComputeRecorder::spans() const { return record_->spans; }

}  // namespace fsdp::train
