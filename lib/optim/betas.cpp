#include "optim/betas.h"

#include "util/error.h"

namespace fsdp::optim {

using util::ErrorKind;
using util::fail;

std::pair<double, double> checked_betas(const OptimizerOptions& options) {
  if (options.betas.size() != 2) {
    fail(ErrorKind::kUsage, "optimizer.betas has ", options.betas.size(),
         " numbers where two were expected; write it as [0.9, 0.95]");
  }
  for (double beta : options.betas) {
    if (!(beta >= 0 && beta < 1)) {
      fail(ErrorKind::kUsage, "optimizer.betas holds ", beta,
           " where numbers of at least 0 and below 1 were expected; correct the config");
    }
  }
  return {options.betas[0], options.betas[1]};
}

}  // namespace fsdp::optim
