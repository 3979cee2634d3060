#pragma once

// Sums over the samples of a batch whose bits do not depend on how samples are distributed over
// micro-batches, ranks and threads.
//
// A gradient of a parameter is the sum of one gradient per sample, each rounded to fp32. These are added
// along a fixed binary tree over the positions of the samples: neighbours first, then pairs of neighbours,
// and so on. A micro-batch of 2^n samples that begins at a multiple of 2^n is a node of the tree.
// shard/engine/reduce/sample_tree.h describes how nodes of micro-batches and ranks are added.

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <vector>

namespace fsdp::kernels {

/// During the object's lifetime, kernels on this thread (on the CPU only) treat the rows of a batch as those
/// of equal samples one after another:
///
///   - gradients of parameters are sums along the tree, with each sample's gradient computed separately;
///   - no row of another result depends on the other rows, or on the number of threads;
///   - the loss is the sum over targets divided by `counted`, not the mean over those of the batch.
///
/// Requires: has_small_products() of the type in which the model computes. One object at a time per thread.
class SampleSums {
 public:
  /// `counted` is the number of targets that count in the whole step, at least 1.
  SampleSums(int64_t samples, double counted);
  ~SampleSums();
  SampleSums(const SampleSums&) = delete;
  SampleSums& operator=(const SampleSums&) = delete;

  /// Returns this thread's object; null: sums are over all rows.
  static SampleSums* current();

  int64_t samples() const { return samples_; }
  double counted() const { return counted_; }
  /// Returns the rows of each sample. Throws unless `rows` divide evenly.
  int64_t rows_of_sample(int64_t rows) const;

  /// Sum of each sample's losses, not divided, in the newest loss computed: [samples]
  std::vector<double> losses;

 private:
  int64_t samples_;
  double counted_;
};

/// Sets `sum` to the sum along the tree of fp32 tensors of its shape. write(i, to) writes that of sample i.
void sum_along_tree(int64_t samples, const at::Tensor& sum,
                    c10::function_ref<void(int64_t sample, const at::Tensor& to)> write);

/// Writes such a sum to the parameter's sink as its gradient (gradient_sink.h), and returns an undefined
/// tensor. Returns the sum, in fp32, if the parameter has no sink.
at::Tensor gradient_along_tree(const at::Tensor& parameter, int64_t samples,
                               c10::function_ref<void(int64_t sample, const at::Tensor& to)> write);

}  // namespace fsdp::kernels
