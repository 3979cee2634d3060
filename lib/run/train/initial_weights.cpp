#include "run/train/initial_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/tensor/rectangle_view.h"
#include "base/util/error.h"
#include "base/util/log.h"
#include "base/util/text.h"
#include "model/families/families.h"
#include "model/nn/buffers.h"
#include "model/nn/initialize.h"
#include "model/nn/layers.h"
#include "model/nn/lora.h"
#include "setup/config/model_description.h"
#include "state/convert/peft_folder.h"
#include "state/weights/stored_model.h"

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

  /// Throws Error(kCheckpoint) with a list of the stored tensors that `model` lacks and that match none of
  /// the patterns.
  void require_used_by(const torch::nn::Module& model, const std::vector<std::string>& may_be_unused) const {
    std::map<std::string, std::string> left = names_;
    for (const auto& parameter : model.named_parameters()) left.erase(parameter.key());
    for (const auto& [name, tensor] : nn::persistent_buffers(model)) left.erase(name);
    checkpoint::WeightMisfits misfits;
    for (const auto& [name, stored] : left) {
      if (!util::matches_any(stored, may_be_unused)) misfits.unexpected.push_back(stored);
    }
    checkpoint::refuse_initial(misfits, weights_);
  }

  void read(const NamedParameter& parameter, const std::vector<util::Rectangle>& parts,
            const at::Tensor& out) override {
    if (out.numel() == 0) return;
    auto name = names_.find(parameter.name);
    for (const std::string& other : parameter.other_names) {
      if (name == names_.end()) name = names_.find(other);
    }
    if (name == names_.end()) {
      fail(ErrorKind::kCheckpoint, "the weights of model.init_from ", weights_.path().string(),
           " do not match [model]; missing: ", parameter.name);
    }
    checkpoint::WeightMisfits misfits;
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
  std::map<std::string, std::string> names_;  ///< the file's names, by the model's names
};

class BroadcastWeights final : public shard::ParameterSource {
 public:
  BroadcastWeights(std::unique_ptr<shard::ParameterSource> source,
                   std::shared_ptr<comm::Communicator> communicator)
      : source_(std::move(source)), communicator_(std::move(communicator)) {}

  void read(const NamedParameter& parameter, const std::vector<util::Rectangle>& parts,
            const at::Tensor& out) override {
    const int64_t numel = parameter.tensor.numel();
    at::Tensor whole = at::empty({numel}, at::kFloat);
    comm::agree(*communicator_, "initial weights", [&] {
      if (communicator_->rank() == 0) source_->read(parameter, {{0, numel}}, whole);
    });
    communicator_->broadcast(whole, /*root=*/0, {.unit = parameter.name})->wait();
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

/// Weights that every rank reads by itself. Because disks differ in speed, the ranks meet while they read
/// (comm::agree()).
class PatientWeights final : public shard::ParameterSource {
 public:
  PatientWeights(std::unique_ptr<shard::ParameterSource> source,
                 std::shared_ptr<comm::Communicator> communicator)
      : source_(std::move(source)), communicator_(std::move(communicator)) {}

  void read(const NamedParameter& parameter, const std::vector<util::Rectangle>& parts,
            const at::Tensor& out) override {
    comm::agree(*communicator_, "initial weights", [&] { source_->read(parameter, parts, out); });
  }

  void read_buffer(const shard::NamedTensor& buffer) override {
    comm::agree(*communicator_, "initial weights", [&] { source_->read_buffer(buffer); });
  }

 private:
  std::unique_ptr<shard::ParameterSource> source_;
  std::shared_ptr<comm::Communicator> communicator_;
};

class AdapterWeights final : public shard::ParameterSource {
 public:
  AdapterWeights(std::unique_ptr<shard::ParameterSource> base, const torch::nn::Module& model,
                 const nn::LoraOptions& options, uint64_t seed)
      : base_(std::move(base)), seed_(seed) {
    for (const auto& item : model.named_modules(/*name_prefix=*/std::string(), /*include_self=*/false)) {
      const auto* linear = dynamic_cast<const nn::Linear*>(item.value().get());
      if (linear != nullptr) layers_.emplace(item.key(), Layer(*linear));
    }
    if (!options.init_from.empty()) open(model, options);
  }

  void read(const NamedParameter& parameter, const std::vector<util::Rectangle>& parts,
            const at::Tensor& out) override {
    const auto adapter = nn::lora_name(parameter.name);
    if (parameter.tensor.scalar_type() == at::kByte) {
      read_quantized(parameter, parts, out);
    } else if (!adapter) {
      base_->read(parameter, parts, out);
    } else if (stored_) {
      util::for_each_part(parts, out, [&](const util::Rectangle& part, const at::Tensor& values) {
        stored_->weights.read_part_into(stored_->names.at(parameter.name), part, values);
      });
    } else if (adapter->part == nn::LoraPart::kMagnitude) {
      read_magnitudes(adapter->layer, parameter.tensor.numel(), parts, out);
    } else if (out.numel() > 0) {
      nn::initialize_lora(parameter.name, parameter.tensor.sizes(), parts, out, seed_);
    }
  }

  void read_buffer(const shard::NamedTensor& buffer) override { base_->read_buffer(buffer); }

 private:
  struct Layer {
    explicit Layer(const nn::Linear& layer)
        : transposed(layer.is_transposed()), quantization(layer.quantization()) {
      std::vector<int64_t> shape = {layer.out_features(), layer.in_features()};
      if (transposed) std::swap(shape[0], shape[1]);
      weight = at::empty(shape, at::TensorOptions(at::kMeta));
    }
    at::Tensor weight;  ///< shape of the weight in `base`, on meta
    bool transposed;
    std::optional<kernels::Quantization> quantization;
  };

  /// Quantizes the whole matrix on every rank, which keeps a part: blocks and their magnitudes are stored
  /// apart.
  void read_quantized(const NamedParameter& parameter, const std::vector<util::Rectangle>& parts,
                      const at::Tensor& out) {
    constexpr std::string_view kEnding = ".weight";
    const Layer& layer = layers_.at(parameter.name.substr(0, parameter.name.size() - kEnding.size()));
    NamedParameter whole = parameter;
    whole.tensor = layer.weight;
    std::vector<util::Rectangle> all;
    if (out.numel() > 0) all = {{0, layer.weight.numel()}};
    const at::Tensor read = at::empty({util::numel_of(all)}, at::TensorOptions(at::kFloat));
    base_->read(whole, all, read);
    if (all.empty()) return;
    at::Tensor matrix = read.view(layer.weight.sizes());
    if (layer.transposed) matrix = matrix.t().contiguous();
    const at::Tensor bytes = kernels::quantize(matrix, layer.quantization.value());
    util::for_each_part(parts, out, [&bytes](const util::Rectangle& part, const at::Tensor& values) {
      values.view({part.height(), part.length()}).copy_(util::rectangle_view(bytes, part));
    });
  }

  /// Returns the norms of the requested rows of the weight, and reads no other rows.
  void read_magnitudes(const std::string& name, int64_t numel, const std::vector<util::Rectangle>& parts,
                       const at::Tensor& out) {
    const Layer& layer = layers_.at(name);
    const int64_t in = layer.weight.numel() / numel;
    std::vector<util::Rectangle> read;
    for (const util::Rectangle& part : parts) {
      const int64_t columns = numel / part.rows;
      for (int64_t row = part.row_begin; row < part.row_end; ++row) {
        const int64_t begin = row * columns + part.begin, end = row * columns + part.end;
        read.push_back(
            layer.transposed
                ? util::Rectangle{.begin = begin, .end = end, .rows = in, .row_end = in}
                : util::Rectangle{.begin = 0, .end = in, .rows = numel, .row_begin = begin, .row_end = end});
      }
    }
    const at::Tensor values = at::empty({util::numel_of(read)}, out.options());
    base_->read({.name = name + ".weight", .tensor = layer.weight}, read, values);
    int64_t first = 0;
    util::for_each_part(read, values, [&](const util::Rectangle& part, const at::Tensor& of_part) {
      const at::Tensor matrix = of_part.view({part.height(), part.length()});
      const at::Tensor norms = at::linalg_vector_norm(matrix, 2, at::IntArrayRef{layer.transposed ? 0 : 1});
      out.narrow(0, first, norms.numel()).copy_(norms);
      first += norms.numel();
    });
  }

  void open(const torch::nn::Module& model, const nn::LoraOptions& options) {
    stored_ = checkpoint::open_adapter(options.init_from);
    checkpoint::require_same_scale(stored_->description, options, stored_->where);
    checkpoint::WeightMisfits misfits;
    std::map<std::string, std::string> left = stored_->names;
    for (const auto& parameter : model.named_parameters()) {
      if (!nn::lora_name(parameter.key())) continue;
      const auto found = left.find(parameter.key());
      if (found == left.end()) {
        misfits.missing.push_back(parameter.key());
        continue;
      }
      checkpoint::compare_shape(parameter.key(), stored_->weights.shape(found->second),
                                parameter.value().sizes().vec(), misfits);
      left.erase(found);
    }
    for (const auto& [name, stored] : left) misfits.unexpected.push_back(stored);
    misfits.refuse_any("of lora.init_from " + options.init_from, "[model] and lora.targets");
  }

  std::unique_ptr<shard::ParameterSource> base_;
  uint64_t seed_;
  std::map<std::string, Layer> layers_;
  std::optional<checkpoint::StoredAdapter> stored_;  ///< lora.init_from
};

/// Bytes of all parameters, of which tied ones are one.
int64_t parameter_bytes(const torch::nn::Module& model) {
  std::set<const at::TensorImpl*> seen;
  int64_t bytes = 0;
  for (const at::Tensor& parameter : model.parameters()) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second)
      bytes += static_cast<int64_t>(parameter.nbytes());
  }
  return bytes;
}

class CountedWeights final : public shard::ParameterSource {
 public:
  CountedWeights(std::unique_ptr<shard::ParameterSource> source, util::ByteCounter counter)
      : source_(std::move(source)), counter_(std::move(counter)) {}

  void read(const NamedParameter& parameter, const std::vector<util::Rectangle>& parts,
            const at::Tensor& out) override {
    source_->read(parameter, parts, out);
    counter_.add(static_cast<int64_t>(parameter.tensor.nbytes()));
  }

  void read_buffer(const shard::NamedTensor& buffer) override { source_->read_buffer(buffer); }

 private:
  std::unique_ptr<shard::ParameterSource> source_;
  util::ByteCounter counter_;
};

/// `added`: sentences of checkpoint::extend_vocabulary().
void report_added_rows(const std::vector<std::string>& added, const nn::ModelOptions& options,
                       const torch::nn::Module& model) {
  for (const std::string& sentence : added) util::log_info(sentence);
  if (added.empty()) return;
  const auto parameters = model.named_parameters();
  const at::Tensor* embedding = parameters.find(nn::family_of(options).token_weight());
  if (embedding == nullptr || embedding->requires_grad()) return;
  util::log_warning(
      "lora.rank freezes the embedding, so that all added tokens keep the same row and the model cannot tell "
      "them apart; leave out [lora] to train them, or use markers that the tokenizer has");
}

}  // namespace

std::unique_ptr<shard::ParameterSource> counted_weights(std::unique_ptr<shard::ParameterSource> source,
                                                        const torch::nn::Module& model,
                                                        WeightsProgress progress) {
  util::ByteCounter counter(std::move(progress.report), std::move(progress.words), parameter_bytes(model));
  return std::make_unique<CountedWeights>(std::move(source), std::move(counter));
}

std::unique_ptr<shard::ParameterSource> with_adapters(std::unique_ptr<shard::ParameterSource> base,
                                                      const torch::nn::Module& model,
                                                      const nn::LoraOptions& options, uint64_t seed) {
  return std::make_unique<AdapterWeights>(std::move(base), model, options, seed);
}

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
                                                        std::shared_ptr<comm::Communicator> communicator,
                                                        const torch::nn::Module& model) {
  std::unique_ptr<shard::ParameterSource> source;
  comm::agree(*communicator, "initial weights", [&] {
    if (options.init_broadcast && communicator->rank() != 0) return;
    if (options.init_from.empty()) {
      source = random_weights(options, seed);
      return;
    }
    config::require_same_model(options, options.init_from);
    checkpoint::Weights weights = checkpoint::open_weights(options.init_from);
    const std::vector<std::string> added = checkpoint::extend_vocabulary(weights, options);
    auto stored = std::make_unique<StoredWeights>(options, std::move(weights));
    stored->require_used_by(model, options.init_unused);
    if (communicator->rank() == 0) report_added_rows(added, options, model);
    source = std::move(stored);
  });
  if (options.init_broadcast) return broadcast_weights(std::move(source), std::move(communicator));
  if (options.init_from.empty()) return source;
  return std::make_unique<PatientWeights>(std::move(source), std::move(communicator));
}

}  // namespace fsdp::train
