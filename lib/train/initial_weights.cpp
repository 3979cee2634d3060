#include "train/initial_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "nn/initialize.h"
#include "util/error.h"
#include "util/name_list.h"
#include "util/text.h"

namespace fsdp::train {
namespace {

using shard::LocalRange;
using shard::NamedParameter;
using util::concat;

/// out [rows * (end - begin)] = columns [begin, end) of whole [numel] seen as [rows, numel / rows].
void copy_columns(const at::Tensor& whole, const LocalRange& range, const at::Tensor& out) {
  if (out.numel() == 0) return;
  out.view({range.rows, -1})
      .copy_(whole.view({range.rows, -1}).narrow(1, range.begin, range.end - range.begin));
}

class RandomWeights final : public shard::ParameterSource {
 public:
  RandomWeights(const nn::ModelOptions& options, uint64_t seed) : options_(options), seed_(seed) {}

  void read(const NamedParameter& parameter, const LocalRange& range, const at::Tensor& out) override {
    if (out.numel() == 0) return;
    const at::IntArrayRef sizes = parameter.tensor.sizes();
    if (range.rows == 1) {
      nn::initialize_elements(parameter.name, sizes, range.begin, out, options_, seed_);
      return;
    }
    at::Tensor whole = at::empty(sizes, out.options());
    nn::initialize_parameter(parameter.name, whole, options_, seed_);
    copy_columns(whole, range, out);
  }

 private:
  nn::ModelOptions options_;
  uint64_t seed_;
};

class StoredWeights final : public shard::ParameterSource {
 public:
  StoredWeights(const torch::nn::Module& model, checkpoint::Weights weights) : weights_(std::move(weights)) {
    refuse_misfits(model);
  }

  void read(const NamedParameter& parameter, const LocalRange& range, const at::Tensor& out) override {
    if (out.numel() == 0) return;
    const std::string* name = &parameter.name;
    for (const std::string& other : parameter.other_names) {
      if (!weights_.contains(*name)) name = &other;
    }
    weights_.read_columns_into(*name, range.begin, out.view({range.rows, -1}));
  }

 private:
  void refuse_misfits(const torch::nn::Module& model) const {
    std::vector<std::string> problems;
    std::vector<std::pair<const void*, std::string>> missing;  // in the order of the model
    std::set<const void*> found;
    for (const auto& parameter : model.named_parameters()) {
      const void* id = parameter.value().unsafeGetTensorImpl();
      const std::string& name = parameter.key();
      if (found.count(id) > 0) continue;
      if (!weights_.contains(name)) {
        missing.emplace_back(id, name);
        continue;
      }
      found.insert(id);
      const checkpoint::TensorInfo& info = weights_.info(name);
      if (parameter.value().sizes() != at::IntArrayRef(info.shape)) {
        problems.push_back(concat(name, " has shape ", at::IntArrayRef(info.shape), " there, ",
                                  parameter.value().sizes(), " in the model"));
      } else if (!c10::isFloatingType(info.dtype)) {
        problems.push_back(concat(name, " has no floating-point type there but ", c10::toString(info.dtype)));
      }
    }
    for (const auto& [id, name] : missing) {
      if (found.count(id) == 0) problems.push_back(name + " is missing");
    }
    if (problems.empty()) return;
    util::fail(util::ErrorKind::kCheckpoint, "model.init_from ", weights_.path().string(),
               " does not fit the model: ", util::name_list(problems, "; "),
               "; check the sizes under [model]");
  }

  checkpoint::Weights weights_;
};

class BroadcastWeights final : public shard::ParameterSource {
 public:
  BroadcastWeights(std::unique_ptr<shard::ParameterSource> source,
                   std::shared_ptr<comm::Communicator> communicator)
      : source_(std::move(source)), communicator_(std::move(communicator)) {}

  void read(const NamedParameter& parameter, const LocalRange& range, const at::Tensor& out) override {
    const int64_t numel = parameter.tensor.numel();
    // The last element tells whether rank 0 has failed, so that it need not be asked for each parameter.
    at::Tensor sent = at::empty({numel + 1}, at::kFloat);
    at::Tensor whole = sent.narrow(0, 0, numel);
    float& failed = sent.data_ptr<float>()[numel];
    std::exception_ptr failure;
    if (communicator_->rank() == 0) {
      try {
        source_->read(parameter, {.rows = 1, .begin = 0, .end = numel}, whole);
      } catch (const std::exception&) {
        failure = std::current_exception();
      }
      failed = failure ? 1 : 0;
    }
    communicator_->broadcast(sent, /*root=*/0, {.unit = parameter.name})->wait();
    if (failed != 0) {
      comm::agree(*communicator_, "initial weights", [&] {
        if (failure) std::rethrow_exception(failure);
      });
    }
    copy_columns(whole, range, out);
  }

 private:
  std::unique_ptr<shard::ParameterSource> source_;
  std::shared_ptr<comm::Communicator> communicator_;
};

}  // namespace

std::unique_ptr<shard::ParameterSource> random_weights(const nn::ModelOptions& options, uint64_t seed) {
  return std::make_unique<RandomWeights>(options, seed);
}

std::unique_ptr<shard::ParameterSource> stored_weights(const torch::nn::Module& model,
                                                       checkpoint::Weights weights) {
  return std::make_unique<StoredWeights>(model, std::move(weights));
}

std::unique_ptr<shard::ParameterSource> broadcast_weights(std::unique_ptr<shard::ParameterSource> source,
                                                          std::shared_ptr<comm::Communicator> communicator) {
  return std::make_unique<BroadcastWeights>(std::move(source), std::move(communicator));
}

std::unique_ptr<shard::ParameterSource> initial_weights(const torch::nn::Module& model,
                                                        const nn::ModelOptions& options, uint64_t seed,
                                                        std::shared_ptr<comm::Communicator> communicator) {
  std::unique_ptr<shard::ParameterSource> source;
  comm::agree(*communicator, "initial weights", [&] {
    if (options.init_broadcast && communicator->rank() != 0) return;
    source = options.init_from.empty() ? random_weights(options, seed)
                                       : stored_weights(model, checkpoint::open_weights(options.init_from));
  });
  if (options.init_broadcast) source = broadcast_weights(std::move(source), std::move(communicator));
  return source;
}

}  // namespace fsdp::train
