#include <utility>

#include "base/util/registry.h"
#include "state/optim/adafactor.h"
#include "state/optim/adaptive_rates.h"
#include "state/optim/element_optimizers.h"
#include "state/optim/lamb.h"
#include "state/optim/muon.h"
#include "state/optim/optimizer.h"

namespace fsdp::optim {
namespace {

using Parameters = std::vector<FlatParameter>;

template <typename Made>
std::unique_ptr<Optimizer> make_plain(const OptimizerOptions& options, Parameters parameters,
                                      WholeMatrices*) {
  return std::make_unique<Made>(options, std::move(parameters));
}

template <Adam::Decay kDecay>
std::unique_ptr<Optimizer> make_adam(const OptimizerOptions& options, Parameters parameters, WholeMatrices*) {
  return std::make_unique<Adam>(options, kDecay, std::move(parameters));
}

template <typename Made>
std::unique_ptr<Optimizer> make_of_tensors(const OptimizerOptions& options, Parameters parameters,
                                           WholeMatrices* matrices) {
  return std::make_unique<Made>(options, std::move(parameters), matrices);
}

util::Registry<OptimizerFactory>& factories() {
  static util::Registry<OptimizerFactory> factories("optimizer",
                                                    {{"adamw", make_adam<Adam::Decay::kDecoupled>},
                                                     {"adam", make_adam<Adam::Decay::kInGradient>},
                                                     {"adamax", make_plain<Adamax>},
                                                     {"adagrad", make_plain<Adagrad>},
                                                     {"adadelta", make_plain<Adadelta>},
                                                     {"sgd", make_plain<Sgd>},
                                                     {"lion", make_plain<Lion>},
                                                     {"lamb", make_of_tensors<Lamb>},
                                                     {"adafactor", make_of_tensors<Adafactor>},
                                                     {"muon", make_of_tensors<Muon>}});
  return factories;
}

}  // namespace

void register_optimizer(const std::string& name, const OptimizerTraits& traits, OptimizerFactory make) {
  optimizer_traits().add(name, traits);
  factories().add(name, std::move(make));
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          std::vector<FlatParameter> parameters, WholeMatrices* matrices) {
  return factories().get(options.name, "optimizer.name")(options, std::move(parameters), matrices);
}

}  // namespace fsdp::optim
