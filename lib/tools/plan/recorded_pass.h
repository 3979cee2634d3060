#pragma once

// RecordedPass: the tensor memory and compute of one forward and backward of a model, event by event.
//
// The model is built on meta tensors, which have shapes but no memory, and runs as in training, with its
// recomputation, its kernels (model/kernels/meta.h) and libtorch's autograd. An allocator of meta memory
// records allocations and releases, a callback of libtorch's dispatcher the matrix products, and hooks the
// begin and end of stages. So new models, layers and kernels are planned without changes here.
// tests/run/train/planned_step_test.cpp compares the sums with those of training.
//
// Memory that kernels take from malloc is not recorded, such as oneDNN's for products in low precision.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/kernels/meta_product.h"
#include "model/nn/layers.h"
#include "setup/config/config.h"
#include "shard/units/schedule.h"
#include "shard/units/unit_sizes.h"

namespace fsdp::plan {

/// The units of a model.
using Units = std::vector<shard::UnitSizes>;

/// Adds up the tensor memory that a step allocates and frees.
class MemoryTape {
 public:
  void take(int64_t bytes) {
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  }
  void give(int64_t bytes) { live_ -= bytes; }
  /// Memory that is given back before the next event.
  void touch(int64_t bytes) { peak_ = std::max(peak_, live_ + bytes); }

  /// Restarts the peak at the live bytes.
  void reset_peak() { peak_ = live_; }

  int64_t live() const { return live_; }
  int64_t peak() const { return peak_; }

 private:
  int64_t live_ = 0, peak_ = 0;
};

/// Computed matrix products.
struct Products {
  double flops = 0;
  double flops_in_float8 = 0;  ///< part of flops
  kernels::MetaProduct shape = {};
};

/// Called at the events of a pass; stages are named by their paths, the outermost by an empty one. A forward
/// that runs again for backward is part of the backward. `backward_ends` is called only for stages with an
/// input that requires a gradient, and for the outermost stage.
struct StageEvents {
  std::function<void(const std::string& path)> forward_begins = [](const std::string&) {};
  std::function<void(const std::string& path)> forward_ends = [](const std::string&) {};
  std::function<void(const std::string& path)> backward_begins = [](const std::string&) {};
  std::function<void(const std::string& path)> backward_ends = [](const std::string&) {};
  std::function<void(const Products& products)> computes = [](const Products&) {};
  /// Memory for a result, or for what a kernel works in.
  std::function<void(int64_t bytes)> takes = [](int64_t) {};
  /// Collectives inside layers, numbered: bytes that the rank receives.
  std::function<void(int64_t number, int64_t bytes)> sends = [](int64_t, int64_t) {};
  /// Copies between the device and host memory, with numbers of the same count.
  std::function<void(int64_t number, int64_t bytes)> copies = [](int64_t, int64_t) {};
  std::function<void(int64_t number)> waits = [](int64_t) {};
};

enum class PassEventKind : uint8_t {
  kTake,
  kGive,
  kMultiply,
  kMultiplyInFloat8,
  kSend,  ///< begin of a collective; `flops` are the bytes that the rank receives
  kCopy,  ///< begin of a copy between the device and host memory; `flops` are its bytes
  kWait,  ///< wait for the end of either
  kHost,  ///< `value` bytes of host memory are taken or, if negative, given back
  kForwardBegins,
  kForwardEnds,
  kTurn,  ///< turn from forward to backward
  kBackwardBegins,
  kBackwardEnds,
};

struct PassEvent {
  PassEventKind kind;
  double flops = 0;
  int64_t value = 0;  ///< bytes, or the number of a path, a collective or the shape of a product
};

class RecordedPass {
 public:
  struct Recording {
    std::vector<PassEvent> events;
    std::vector<std::string> paths;
    int64_t kept_bytes = 0;
    bool on_device = false;
    std::vector<kernels::MetaProduct> shapes = {};  ///< shapes of products, each once
  };
  explicit RecordedPass(Recording parts) : parts_(std::move(parts)) {}

  /// Repeats the events of the pass. Leaves the tape's live bytes as they were.
  void play(MemoryTape& tape, const StageEvents& events = {}) const;

  /// Bytes that are live when backward begins.
  int64_t saved_bytes() const;
  /// The most bytes of activations in host memory at once.
  int64_t host_bytes() const;
  /// A stage's part of saved_bytes(), and its products.
  struct StageShare {
    int64_t saved_bytes = 0;
    double forward_flops = 0, backward_flops = 0;
  };
  /// The shares of these stages, given by path, none of which is inside another.
  std::vector<StageShare> shares(const std::vector<std::string>& stages) const;
  /// Memory that outlives the pass, not on the tape: tokens, targets, and tables such as those of rotary
  /// positions.
  int64_t kept_bytes() const { return parts_.kept_bytes; }
  /// Whether the pass is one of a GPU.
  bool on_device() const { return parts_.on_device; }
  double flops() const;
  int64_t number_of_events() const { return static_cast<int64_t>(parts_.events.size()); }

 private:
  Recording parts_;
};

/// The events that run the schedule of the units along with a pass; `before_end` is called when a unit has
/// computed. The arguments must outlive the result.
StageEvents run_schedule(shard::Schedule& schedule, const Units& units,
                         std::function<void()> before_end = nullptr);

/// The device for which the pass is recorded: training.device, or a CPU regardless.
enum class PassDevice { kOfConfig, kCpu };

/// Whether that device is a GPU.
bool is_for_gpu(const config::Config& config, PassDevice device = PassDevice::kOfConfig);

/// Makes the layers that the config chooses multiply in 8 bits, and returns them; none without
/// training.float8.
nn::Float8Layers use_float8(nn::Stage& model, const config::Config& config);

/// Records a micro-batch of the config on the first rank; with mesh.context, which must have its size, the
/// rank's part of the rows. Throws Error(kUsage) for a model with an operation that libtorch cannot run on
/// meta tensors.
RecordedPass record_pass(const config::Config& config, PassDevice device = PassDevice::kOfConfig);

/// Floating-point operations (a multiplication and an addition are two) of a forward and backward per token;
/// 0 for a model that cannot be planned. Shares of the peak rate by either count are called model and
/// hardware FLOPs utilization (MFU, HFU; Chowdhery et al.: PaLM, 2022, appendix B).
struct FlopsAToken {
  /// Operations by the model's definition: three times the products of the forward, counting the half of
  /// attention that causality hides. With adapters, whose frozen weights have no gradients: the products of
  /// the pass.
  double model = 0;
  double hardware = 0;  ///< including the operations that activation checkpointing repeats

  double recomputed() const { return hardware - model; }
};

/// Counts for rows of `sequence_length` tokens.
FlopsAToken flops_a_token(const nn::ModelOptions& model, int64_t sequence_length,
                          const nn::CheckpointingOptions& checkpointing = {},
                          const nn::LoraOptions& lora = {});

}  // namespace fsdp::plan
