#pragma once

// The tensor memory of one micro-batch of a llama or gpt2 (lib/nn) beside parameters and their gradients:
// what autograd saves, gradients of activations, temporaries. Computed from shapes, tensor by tensor, in the
// order in which libtorch's CPU kernels take them and autograd gives them back. Measured against the real
// thing in tests/train/plan_test.cpp.
//
// With N = micro_batch_size * sequence_length tokens, width D, inner width I, K the width of all key heads, H
// heads, vocabulary V, and e bytes an element of the compute type, this is saved from forward to backward:
//
//   a block                         fp32                    bf16, fp16
//     llama   two RMSNorms          2 * (12 ND + 4 N)       2 * (8 ND + 2 ND + 4 N)
//             attention             e N (2 D + 2 K) + 4 N H
//             SwiGLU                4 e N I
//     gpt2    two LayerNorms        2 * (8 ND + 8 N)        2 * (4 ND + 2 ND + 8 N + 8 D)
//             attention             4 e N D + 4 N H
//             feed-forward          2 e N I
//   a recomputed block              e N D, its input
//   loss                            4 N V, the log-probabilities
//
// and with fused kernels (kernels/fused.h)
//
//     llama   two RMSNorms          2 * (2 e ND + 4 N)
//             SwiGLU                3 e N I
//     gpt2    two LayerNorms        2 * (2 e ND + 8 N)
//     loss                          e ND + e VD, the gradients of the head's input and weight, and no more
//                                   than some rows of the scores at a time
//
// and no more with training.float8: what is rounded to 8 bits is so again for backward. In passing there are
// the factors of a product in 8 bits, one byte an element (kernels/float8.h), and on the CPU these in fp32.
//
// Beyond that the largest moments are three tensors of 4 N V at the begin of backward, and within the
// backward of a block the feed-forward's, with some e N I and the gradient of one weight. A recomputed block
// has all of its own memory then. Attention saves no N * T scores.
//
// Not in it: scratch memory of oneDNN's products in low precision, which depends on the CPU.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "config/config.h"
#include "plan/linear_layers.h"
#include "plan/memory_tape.h"

namespace fsdp::plan {

/// What activations depend on.
struct ActivationShape {
  nn::ModelOptions model;
  int64_t rows = 1;            ///< micro_batch_size
  int64_t tokens = 1;          ///< of a row
  int64_t element = 4;         ///< bytes of the type of compute
  int64_t buffer_element = 4;  ///< of the rotary tables
  /// Gradients are added to those of earlier micro-batches in another type than that of compute, one
  /// converted copy at a time.
  bool converts_gradients = false;
  std::vector<std::string> recomputed;  ///< stage types; empty: nothing is recomputed
  bool fused = false;                   ///< by kernels/fused.h
  bool attends = false;                 ///< by kernels/attention.h
  bool onednn = false;                  ///< fp32 products by it
  bool small_products = false;          ///< and these by kernels/block_product.h
  bool joins_products = false;          ///< those with one input, of llama
  /// Gradients have places in the buffers of units (kernels/gradient_sink.h): those of products with weights,
  /// and of embeddings.
  bool products_accumulate = false, embeddings_accumulate = false;
  bool float8_accumulates = false;     ///< the same of products in 8 bits
  bool places_have_gradients = false;  ///< of earlier micro-batches
  Float8Choice float8;
  bool float8_on_cpu = false;  ///< else on a GPU
  int64_t threads = 1;         ///< that compute; kernels have scratch memory for each

  int64_t count() const { return rows * tokens; }
};

ActivationShape activation_shape(const config::Config& config);

/// Products of matrices that are computed.
struct Products {
  double flops = 0;
  double flops_in_float8 = 0;  ///< of these
};

/// Tells where in the pass a stage, named by its path, stands. A forward that is run again for backward is
/// part of the backward.
struct StageEvents {
  std::function<void(const std::string& path)> forward_begins = [](const std::string&) {};
  std::function<void(const std::string& path)> forward_ends = [](const std::string&) {};
  std::function<void(const std::string& path)> backward_begins = [](const std::string&) {};
  std::function<void(const std::string& path)> backward_ends = [](const std::string&) {};
  std::function<void(const Products& products)> computes = [](const Products&) {};
};

/// One forward and backward of the model and its loss. The tape is where it was before when it ends. The
/// outermost stage has the empty path.
void run_micro_batch(const ActivationShape& shape, MemoryTape& tape, const StageEvents& events = {});

/// What backward finds saved when it begins.
int64_t saved_activation_bytes(const ActivationShape& shape);

}  // namespace fsdp::plan
