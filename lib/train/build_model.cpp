#include "train/build_model.h"

#include <ATen/core/grad_mode.h>

#include <map>
#include <set>

#include "checkpoint/weights.h"
#include "nn/decoder.h"
#include "nn/initialize.h"
#include "util/error.h"
#include "util/text.h"

namespace fsdp::train {
namespace {

/// Fills every parameter from the file or folder and lists all that do not fit at once. A tied parameter is
/// read under the first of its names, or under whichever of them the file has.
void read_weights(torch::nn::Module& model, const std::string& path) {
  at::NoGradGuard no_grad;
  checkpoint::Weights weights = checkpoint::open_weights(path);
  std::vector<std::string> problems;
  std::map<const void*, std::string> missing;
  std::set<const void*> filled;
  for (const auto& parameter : model.named_parameters()) {
    const void* id = parameter.value().unsafeGetTensorImpl();
    const std::string& name = parameter.key();
    if (filled.count(id) > 0) continue;
    if (!weights.contains(name)) {
      missing.emplace(id, name);
      continue;
    }
    if (parameter.value().sizes() != at::IntArrayRef(weights.shape(name))) {
      problems.push_back(util::concat(name, " has shape ", at::IntArrayRef(weights.shape(name)), " there, ",
                                      parameter.value().sizes(), " in the model"));
    } else {
      weights.read_into(name, parameter.value().detach());
    }
    filled.insert(id);
  }
  for (const auto& [id, name] : missing) {
    if (filled.count(id) == 0) problems.push_back(name + " is missing");
  }
  if (problems.empty()) return;
  util::fail(util::ErrorKind::kCheckpoint, "model.init_from ", path,
             " does not fit the model: ", util::join(problems, "; "), "; check the sizes under [model]");
}

}  // namespace

std::shared_ptr<nn::Stage> build_model(const nn::ModelOptions& options, uint64_t seed) {
  auto model = nn::make_decoder(options);
  if (options.init_from.empty()) {
    nn::initialize_parameters(*model, options, seed);
  } else {
    read_weights(*model, options.init_from);
  }
  return model;
}

}  // namespace fsdp::train
