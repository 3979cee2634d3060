#pragma once

// RecordedPass: what one forward and backward of a model take of tensor memory and of compute, event by event.
//
// The model itself says it: it is built on meta tensors, which have shapes and no memory, and runs as it does
// in training, with its recomputation, its kernels (kernels/meta.h) and libtorch's autograd. An allocator of meta
// memory writes down what is taken and given back, a callback of libtorch's dispatcher which matrices are
// multiplied, and hooks where stages begin and end. So a model, a layer or a kernel that is new is planned
// without a word about it here. tests/train/plan_test.cpp compares the sums with what training takes.
//
// Not in it: memory that kernels take from malloc, such as oneDNN's for products in low precision.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "config/config.h"
#include "plan/memory_tape.h"

namespace fsdp::plan {

/// Products of matrices that are computed.
struct Products {
  double flops = 0;
  double flops_in_float8 = 0;  ///< of these
};

/// Hears where in the pass a stage, named by its path, stands. A forward that is run again for backward is part
/// of the backward. The end of a backward that no gradient of an input shows is not heard, but for the
/// outermost stage's, whose path is empty.
struct StageEvents {
  std::function<void(const std::string& path)> forward_begins = [](const std::string&) {};
  std::function<void(const std::string& path)> forward_ends = [](const std::string&) {};
  std::function<void(const std::string& path)> backward_begins = [](const std::string&) {};
  std::function<void(const std::string& path)> backward_ends = [](const std::string&) {};
  std::function<void(const Products& products)> computes = [](const Products&) {};
};

class RecordedPass {
 public:
  struct Event {
    enum class Kind : uint8_t {
      kTake,
      kGive,
      kMultiply,
      kMultiplyInFloat8,
      kForwardBegins,
      kForwardEnds,
      kTurn,  ///< from forward to backward
      kBackwardBegins,
      kBackwardEnds,
    };
    Kind kind;
    double flops = 0;
    int64_t value = 0;  ///< bytes, or the number of a path
  };
  RecordedPass(std::vector<Event> events, std::vector<std::string> paths, int64_t kept_bytes)
      : events_(std::move(events)), paths_(std::move(paths)), kept_bytes_(kept_bytes) {}

  /// Lives the pass again. The tape is where it was before when it ends.
  void play(MemoryTape& tape, const StageEvents& events = {}) const;

  /// What backward finds saved when it begins.
  int64_t saved_bytes() const;
  /// Of what outlives the pass: tokens and targets, and tables such as those of rotary positions. Not on the tape.
  int64_t kept_bytes() const { return kept_bytes_; }
  double flops() const;

 private:
  std::vector<Event> events_;
  std::vector<std::string> paths_;
  int64_t kept_bytes_;
};

/// Which device the pass is for: training.device, or a CPU whatever that says.
enum class PassDevice { kOfConfig, kCpu };

/// A micro-batch of the config. Throws Error(kUsage) for a model with an operation that libtorch cannot plan.
RecordedPass record_pass(const config::Config& config, PassDevice device = PassDevice::kOfConfig);

/// Floating-point operations, a multiplication and an addition being two, that a forward and a backward of one
/// token ask for by the model's definition: three times the products of its forward, in rows of
/// `sequence_length` tokens, the half of attention that causality hides counted. What recomputation adds is not
/// in it: model FLOPs utilisation counts so (Chowdhery et al.: PaLM, 2022, appendix B). 0 for a model that
/// cannot be planned.
double model_flops_a_token(const nn::ModelOptions& model, int64_t sequence_length);

}  // namespace fsdp::plan
