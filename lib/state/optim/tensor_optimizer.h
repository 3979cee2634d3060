#pragma once

#include "state/optim/optimizer.h"

namespace fsdp::optim {

/// An optimizer whose update of an element also depends on sums over the element's whole tensor, of which the
/// ranks hold parts. Each rank computes the sums of its parts in double precision, and WholeMatrices::add_up()
/// adds them up: so results depend on how the tensors are cut only by the last bits of these sums.
///
/// step() is collective.
class TensorOptimizer : public Optimizer {
 protected:
  TensorOptimizer(const OptimizerOptions& options, std::vector<FlatParameter> parameters,
                  WholeMatrices* matrices);

  /// This rank's part of a tensor in `flat`, which is shaped like the parameter's value. [n]
  static at::Tensor part_of(const at::Tensor& flat, const FlatParameter::Tensor& tensor);
  /// Sums of squares of each tensor. In one pass, with one device synchronisation.
  static std::vector<double> sums_of_squares(const std::vector<at::Tensor>& tensors);
  /// The sums over all parts of parameter i. Collective.
  void add_up(size_t i, std::vector<double>& sums) const;

  void update_ranges(size_t i, const at::Tensor& gradient, double lr, double gradient_scale) override = 0;

 private:
  void update(const Update& update) final;

  WholeMatrices* matrices_;
};

}  // namespace fsdp::optim
