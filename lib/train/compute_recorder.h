#pragma once

// When the stages of units compute: the part of a step that a trace of collectives does not show.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/trace.h"
#include "nn/stage.h"
#include "shard/engine.h"

namespace fsdp::train {

/// One run of a unit's stage, gathering and freeing left out. Times are those of the trace.
struct ComputeSpan {
  enum class Kind { kForward, kRecomputation, kBackward };

  std::string unit;
  Kind kind = Kind::kForward;
  double begin_us = 0;
  std::optional<double> end_us;  ///< none for the backward of a stage whose input has no gradient
};

class ComputeRecorder {
 public:
  /// Attaches to the stages of the engine's units, inside of what is attached already. Records nothing until
  /// clear(). The object may go before the stages.
  ComputeRecorder(nn::Stage& model, const shard::Engine& engine, std::shared_ptr<comm::Trace> trace);

  /// Forgets what was recorded and records what follows.
  void clear();
  /// In the order in which they began.
  const std::vector<ComputeSpan>& spans() const;

 private:
  struct Record;
  class Watch;
  std::shared_ptr<Record> record_;
};

}  // namespace fsdp::train
