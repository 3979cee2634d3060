#pragma once

// Sums over the samples of a batch whose bits do not depend on how samples are shared out to micro-batches, ranks and
// threads.
//
// A gradient of a parameter is the sum of one gradient per sample, each rounded to fp32. These are added up along a
// fixed binary tree over the positions of the samples: neighbours first, then pairs of neighbours, and so on. A
// micro-batch of 2^n samples that begins at a multiple of 2^n is a node of the tree; how nodes of micro-batches and ranks
// are added is told in shard/engine/sample_tree.h.

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <vector>

namespace fsdp::kernels {

/// While it lives, kernels on this thread, on the CPU only, take the rows of a batch for those of equal samples one after
/// another. Then
///
///   - gradients of parameters are sums along the tree, for which each sample's is computed apart;
///   - no row of another result depends on the other rows, or on the number of threads;
///   - the loss is the sum over targets divided by `counted`, not the mean over those of the batch.
///
/// Requires has_small_products() of the type in which the model computes. One object at a time per thread.
class SampleSums {
 public:
  /// `counted`: the targets that count in the whole step, at least 1.
  SampleSums(int64_t samples, double counted);
  ~SampleSums();
  SampleSums(const SampleSums&) = delete;
  SampleSums& operator=(const SampleSums&) = delete;

  /// Of this thread; null: sums are over all rows.
  static SampleSums* current();

  int64_t samples() const { return samples_; }
  double counted() const { return counted_; }
  /// Rows of each sample; throws unless `rows` divide evenly.
  int64_t rows_of_sample(int64_t rows) const;

  /// [samples] The sum of each sample's losses, not divided; of the newest loss computed.
  std::vector<double> losses;

 private:
  int64_t samples_;
  double counted_;
};

/// sum = the sum along the tree of tensors of its shape, fp32 and contiguous: write(i, to) writes that of sample i.
void sum_along_tree(int64_t samples, const at::Tensor& sum,
                    c10::function_ref<void(int64_t sample, const at::Tensor& to)> write);

/// The same as the gradient of a parameter, written to its sink (gradient_sink.h). Undefined, or the sum itself, in fp32,
/// where the parameter has no sink.
at::Tensor gradient_along_tree(const at::Tensor& parameter, int64_t samples,
                               c10::function_ref<void(int64_t sample, const at::Tensor& to)> write);

}  // namespace fsdp::kernels
