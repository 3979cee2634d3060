#pragma once

#include "state/optim/optimizer.h"

namespace fsdp::optim {

/// An optimizer whose update of an element also depends on sums over the element's whole tensor, of which the
/// ranks hold parts. Each rank computes the sums of its parts in double precision, and
/// WholeMatrices::add_up() adds them up over the ranks. Results therefore depend on the sharding only through
/// the last bits of the sums.
///
/// Collective: step().
class TensorOptimizer : public Optimizer {
 protected:
  TensorOptimizer(const OptimizerOptions& options, std::vector<FlatParameter> parameters,
                  WholeMatrices* matrices);

  /// This rank's part of a tensor, [n], in `flat`, which is shaped like the parameter's value.
  static at::Tensor part_of(const at::Tensor& flat, const FlatParameter::Tensor& tensor);
  /// The sum of squares of each tensor, computed with one device synchronisation.
  static std::vector<double> sums_of_squares(const std::vector<at::Tensor>& tensors);
  /// Adds up the sums of parameter i over the ranks. Collective.
  void add_up(size_t i, std::vector<double>& sums) const;

  void update_ranges(size_t i, const at::Tensor& gradient, double lr, double gradient_scale) override = 0;

 private:
  void update(const Update& update) final;

  WholeMatrices* matrices_;
};

}  // namespace fsdp::optim
