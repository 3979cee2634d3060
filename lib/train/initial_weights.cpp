#include "train/initial_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <map>
#include <string>
#include <utility>

#include "checkpoint/stored_model.h"
#include "config/model_description.h"
#include "nn/initialize.h"
#include "util/error.h"
#include "util/rectangle_view.h"

namespace fsdp::train {
namespace {

using shard::NamedParameter;

class RandomWeights final : public shard::ParameterSource {
 public:
  RandomWeights(const nn::ModelOptions& options, uint64_t seed) : options_(options), seed_(seed) {}

  void read(const NamedParameter& parameter, const std::vector<util::Rectangle>& parts,
            const at::Tensor& out) override {
    if (out.numel() == 0) return;
    nn::initialize_elements(parameter.name, parameter.tensor.sizes(), parts, out, options_, seed_);
  }

 private:
  nn::ModelOptions options_;
  uint64_t seed_;
};

class StoredWeights final : public shard::ParameterSource {
 public:
  StoredWeights(const nn::ModelOptions& options, checkpoint::Weights weights)
      : weights_(std::move(weights)), names_(checkpoint::match_initial_weights(weights_, options)) {}

  void read(const NamedParameter& parameter, const std::vector<util::Rectangle>& parts,
            const at::Tensor& out) override {
    if (out.numel() == 0) return;
    auto name = names_.find(parameter.name);
    for (const std::string& other : parameter.other_names) {
      if (name == names_.end()) name = names_.find(other);
    }
    if (name == names_.end()) {
      util::fail(util::ErrorKind::kCheckpoint, "the weights of model.init_from ", weights_.path().string(),
                 " do not match [model]; missing: ", parameter.name);
    }
    checkpoint::Misfits misfits;
    checkpoint::compare_shape(parameter.name, weights_.info(name->second).shape,
                              parameter.tensor.sizes().vec(), misfits);
    misfits.refuse_any("of model.init_from " + weights_.path().string(), "[model]");
    util::for_each_part(parts, out, [&](const util::Rectangle& part, const at::Tensor& values) {
      weights_.read_part_into(name->second, part, values);
    });
  }

  void read_buffer(const shard::NamedTensor& buffer) override {
    const auto name = names_.find(buffer.name);
    if (name == names_.end()) return;
    const at::Tensor values = buffer.tensor.cpu();
    weights_.read_into(name->second, values);
    buffer.tensor.copy_(values);
  }

 private:
  checkpoint::Weights weights_;
  std::map<std::string, std::string> names_;  ///< from the model's names to the file's
};

class BroadcastWeights final : public shard::ParameterSource {
 public:
  BroadcastWeights(std::unique_ptr<shard::ParameterSource> source,
                   std::shared_ptr<comm::Communicator> communicator)
      : source_(std::move(source)), communicator_(std::move(communicator)) {}

  void read(const NamedParameter& parameter, const std::vector<util::Rectangle>& parts,
            const at::Tensor& out) override {
    const int64_t numel = parameter.tensor.numel();
    // The last element says whether rank 0 has failed, which saves a collective for each parameter.
    at::Tensor sent = at::empty({numel + 1}, at::kFloat);
    at::Tensor whole = sent.narrow(0, 0, numel);
    float& failed = sent.data_ptr<float>()[numel];
    std::exception_ptr failure;
    if (communicator_->rank() == 0) {
      try {
        source_->read(parameter, {{0, numel}}, whole);
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
    util::for_each_part(parts, out, [&whole](const util::Rectangle& part, const at::Tensor& values) {
      values.view({part.height(), part.length()}).copy_(util::rectangle_view(whole, part));
    });
  }

  void read_buffer(const shard::NamedTensor& buffer) override {
    comm::agree(*communicator_, "initial weights", [&] {
      if (communicator_->rank() == 0) source_->read_buffer(buffer);
    });
    communicator_->broadcast(buffer.tensor, /*root=*/0, {.unit = buffer.name})->wait();
  }

 private:
  std::unique_ptr<shard::ParameterSource> source_;
  std::shared_ptr<comm::Communicator> communicator_;
};

}  // namespace

std::unique_ptr<shard::ParameterSource> random_weights(const nn::ModelOptions& options, uint64_t seed) {
  return std::make_unique<RandomWeights>(options, seed);
}

std::unique_ptr<shard::ParameterSource> stored_weights(const nn::ModelOptions& options,
                                                       checkpoint::Weights weights) {
  return std::make_unique<StoredWeights>(options, std::move(weights));
}

std::unique_ptr<shard::ParameterSource> broadcast_weights(std::unique_ptr<shard::ParameterSource> source,
                                                          std::shared_ptr<comm::Communicator> communicator) {
  return std::make_unique<BroadcastWeights>(std::move(source), std::move(communicator));
}

std::unique_ptr<shard::ParameterSource> initial_weights(const nn::ModelOptions& options, uint64_t seed,
                                                        std::shared_ptr<comm::Communicator> communicator) {
  std::unique_ptr<shard::ParameterSource> source;
  comm::agree(*communicator, "initial weights", [&] {
    if (options.init_broadcast && communicator->rank() != 0) return;
    if (options.init_from.empty()) {
      source = random_weights(options, seed);
      return;
    }
    config::require_same_model(options, options.init_from);
    source = stored_weights(options, checkpoint::open_weights(options.init_from));
  });
  if (options.init_broadcast) source = broadcast_weights(std::move(source), std::move(communicator));
  return source;
}

}  // namespace fsdp::train
