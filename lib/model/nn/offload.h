#pragma once

// Activations in host memory: what a stage saves for backward waits there, not on the GPU.
//
//   forward    copied to pinned memory as it is saved, on a stream of its own, beside the compute
//   later      its memory on the GPU is freed, when compute has waited for the copy
//   backward   copied back when the backward of the stage that was moved after it begins
//
// Attached outside of a Recompute (model/nn/recompute.h), it moves the only thing that the stage saves, its
// input: memory falls to the activations of one stage and a few inputs, at any depth. Attached alone, it
// moves all that the stage saves.
//
// Stays where it is: parameters and buffers of the stage, tensors of the StageContext, and what is in host
// memory anyway. Tensors that share memory are moved together, once, also between neighbouring stages. Bits
// do not change.
//
// Sources: the offloading of Unsloth's gradient checkpointing, 2024; torchtune's OffloadActivations, 2024.

#include <cstdint>
#include <memory>

#include "model/nn/stage.h"

namespace fsdp::nn {

/// How activations are moved, and which.
struct OffloadOptions {
  /// Stages that run until compute waits for copies to the host: the more, the longer these may take, and the
  /// more memory they hold.
  int64_t patience = 1;
  /// Smaller tensors stay: their copies take longer to begin than to run.
  int64_t least_bytes = 4096;
  /// Whether to move tensors of CPUs and other devices as well; for tests.
  bool everywhere = false;
};

/// The activations of one model that are in host memory, and the memory itself, which later steps use again.
class HostActivations;
/// One for all stages of a model.
std::shared_ptr<HostActivations> make_host_activations(const OffloadOptions& options = {});

/// Moves what the stage that it is attached to saves, if `moves`. Otherwise it only tells when the stage
/// runs: attach one to every stage of which others are moved, with the same HostActivations. Does nothing if
/// grad mode is off.
class Offload final : public StageHook {
 public:
  Offload(std::shared_ptr<HostActivations> host, bool moves) : host_(std::move(host)), moves_(moves) {}
  at::Tensor around(Stage& stage, const at::Tensor& input, const Next& next) override;

 private:
  std::shared_ptr<HostActivations> host_;
  bool moves_;
};

}  // namespace fsdp::nn
