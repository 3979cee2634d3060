#pragma once

// The language-model head as products of chunks of rows, for functions that compute logits chunk by chunk.

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <vector>

#include "model/kernels/matmul.h"

namespace fsdp::kernels {

/// Returns the elements from a row of logits to the next. The fast kernels of cuBLAS need leading dimensions
/// of whole 16 bytes, and a vocabulary such as GPT-2's, 50,257, is odd. All three products have the logits as
/// a matrix.
int64_t row_stride(const at::Tensor& x, int64_t vocabulary);

/// The products with the weight [vocabulary, width]. The fast kernels of cuBLAS also need sizes of whole 16
/// bytes; one product with all 50,257 tokens of GPT-2 is several times slower. So on GPUs the last few tokens
/// have products of their own.
class HeadProducts {
 public:
  HeadProducts(const at::Tensor& x, const at::Tensor& weight, Matmul matmul);

  /// Returns [rows of x, vocabulary], whose rows are row_stride() apart.
  at::Tensor logits(const at::Tensor& x) const;

  /// Computes dx = dlogits weight.
  void gradient_of_input(const at::Tensor& dx, const at::Tensor& dlogits) const;

  /// Computes dweight += dlogits^T x if dweight is defined, otherwise dweight = dlogits^T x: for all rows in
  /// their type, or for some rows in fp32.
  void add_weight_gradient(at::Tensor& dweight, const at::Tensor& dlogits, const at::Tensor& x,
                           bool of_all_rows) const;

  /// Returns dlogits^T x of all rows; undefined if it was written to the weight's sink.
  at::Tensor weight_gradient(const at::Tensor& dlogits, const at::Tensor& x) const;

 private:
  struct VocabularyRange {
    int64_t first, count;  ///< range of tokens
    at::Tensor of(const at::Tensor& x, int64_t dimension) const { return x.narrow(dimension, first, count); }
  };

  /// Computes dweight = dlogits^T x, part by part, or adds it.
  void multiply_parts(const at::Tensor& dweight, const at::Tensor& dlogits, const at::Tensor& x,
                      bool adds) const;

  const at::Tensor& weight_;
  Matmul matmul_;
  std::vector<VocabularyRange> parts_;
};

/// Returns the gradient of a head's weight as the sum over samples of the current SampleSums, in fp32;
/// undefined if it was written to the weight's sink. dlogits_of(first, count): gradients of the logits of
/// these rows, in chunks that do not depend on the number of samples.
at::Tensor weight_gradient_by_sample(const at::Tensor& weight, const at::Tensor& x,
                                     c10::function_ref<at::Tensor(int64_t first, int64_t count)> dlogits_of);

/// Caps the logits in place. Returns the derivative, undefined without a cap.
at::Tensor cap_logits(at::Tensor& logits, double cap, bool differentiates);

/// Throws unless all targets are in the vocabulary or ignored. A check on a GPU would wait for the device;
/// there, the loss of a row with an invalid target is NaN.
void check_targets(const at::Tensor& targets, int64_t vocabulary);

}  // namespace fsdp::kernels
