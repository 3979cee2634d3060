// A plug-in with one of each: a model, a loss, an optimizer, a learning-rate schedule, a data set, and their
// keys in the section [mixer].

#include <fsdp/decoder.h>
#include <fsdp/error.h>
#include <fsdp/module.h>
#include <fsdp/optimizer.h>
#include <fsdp/plugin.h>
#include <fsdp/schedule.h>
#include <torch/torch.h>

#include <charconv>
#include <random>

namespace {

/// A block that mixes the positions of each channel by a learned lower triangular matrix, in place of
/// attention, and then the channels of each position (Tolstikhin et al.: MLP-Mixer, 2021, made causal).
class MixerBlock final : public fsdp::Stage {
 public:
  MixerBlock(int64_t positions, int64_t width, int64_t inner)
      : norm_1_(register_module("norm_1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        norm_2_(register_module("norm_2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        up_(register_module("up", torch::nn::Linear(width, inner))),
        down_(register_module("down", torch::nn::Linear(inner, width))) {
    positions_ = register_parameter("positions", fsdp::empty_parameter({positions, positions}));
  }
  std::string type_name() const override { return "mixer_block"; }

 protected:
  /// x: [B, T, width] -> [B, T, width]
  at::Tensor compute(const at::Tensor& x, const fsdp::StageContext&) override {
    const int64_t tokens = x.size(1);
    const at::Tensor mix = positions_.narrow(0, 0, tokens).narrow(1, 0, tokens).tril();
    const at::Tensor y = x + at::matmul(mix, norm_1_(x));
    return y + down_(at::gelu(up_(norm_2_(y))));
  }

 private:
  torch::nn::LayerNorm norm_1_, norm_2_;
  torch::nn::Linear up_, down_;
  at::Tensor positions_;
};

class Mixer final : public fsdp::Stage {
 public:
  explicit Mixer(const fsdp::ModelOptions& options)
      : embed_(register_module("embed", torch::nn::Embedding(options.vocab_size, options.hidden_size))),
        blocks_(register_module("blocks", std::make_shared<fsdp::StageList>())),
        norm_(register_module("norm",
                              torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.hidden_size})))),
        head_(register_module(
            "head", torch::nn::Linear(
                        torch::nn::LinearOptions(options.hidden_size, options.vocab_size).bias(false)))) {
    const double factor = options.plugin_values.get<double>("mixer.width_factor");
    const auto inner = static_cast<int64_t>(factor * static_cast<double>(options.hidden_size));
    for (int64_t i = 0; i < options.num_hidden_layers; ++i) {
      blocks_->append(
          std::make_shared<MixerBlock>(options.max_position_embeddings, options.hidden_size, inner));
    }
  }
  std::string type_name() const override { return "mixer"; }

 protected:
  /// ids: [B, T] int64 -> logits: [B, T, vocab_size]
  at::Tensor compute(const at::Tensor& ids, const fsdp::StageContext& context) override {
    at::Tensor x = embed_(ids);
    for (const auto& block : *blocks_) x = block->forward(x, context);
    return head_(norm_(x));
  }

 private:
  torch::nn::Embedding embed_;
  std::shared_ptr<fsdp::StageList> blocks_;
  torch::nn::LayerNorm norm_;
  torch::nn::Linear head_;
};

void check(const fsdp::ModelOptions& options) {
  if (!options.tie_word_embeddings) return;
  throw fsdp::Error(fsdp::ErrorKind::kUsage,
                    "model.tie_word_embeddings must be false with mixer, whose head has a weight of its own, "
                    "but is true; leave it out");
}

/// Initializes the weights that mix positions smaller, since each output sums up many terms.
double deviation(const std::string& name, const fsdp::ModelOptions& options) {
  return name.ends_with("positions") ? options.initializer_range / 4 : options.initializer_range;
}

/// Returns -(1 - p)^gamma * log(p) of the target's probability p (Lin et al.: Focal loss for dense object
/// detection, 2017).
at::Tensor focal_loss(const at::Tensor& logits, const at::Tensor& targets, const fsdp::PluginValues& values) {
  const at::Tensor counts = targets.ne(fsdp::kIgnoredTarget);
  const at::Tensor log_p =
      at::log_softmax(logits.to(at::kFloat), -1).gather(-1, targets.clamp_min(0).unsqueeze(-1)).squeeze(-1);
  const at::Tensor losses = -(1 - log_p.exp()).pow(values.get<double>("mixer.gamma")) * log_p;
  return losses.masked_fill(~counts, 0).sum() / counts.sum().clamp_min(1);
}

/// An optimizer that updates by the sign of a momentum (Bernstein et al.: signSGD, 2018, algorithm 2), with
/// decoupled weight decay.
class Signum final : public fsdp::Optimizer {
 public:
  Signum(const fsdp::OptimizerOptions& options, std::vector<fsdp::FlatParameter> parameters)
      : Optimizer(options, std::move(parameters)), beta_(options.plugin_values.get<double>("mixer.beta")) {}

 private:
  void update(const Update& update) override {
    for (size_t i = 0; i < update.values.size(); ++i) {
      const at::Tensor& momentum = update.states[0][i];
      momentum.mul_(beta_).add_(update.gradients[i], 1 - beta_);
      update.values[i].mul_(1 - update.lr * update.weight_decay);
      update.values[i].add_(momentum.sign(), -update.lr);
    }
  }

  double beta_;
};

/// A schedule that rises and falls between a tenth of the rate and the full rate (Smith: Cyclical learning
/// rates, 2017).
double triangles(const fsdp::ScheduleOptions& schedule, const fsdp::ScheduleMoment& at) {
  const auto half = schedule.plugin_values.get<int64_t>("mixer.half_cycle");
  const int64_t place = (at.step - at.peak) % (2 * half);
  const double share = static_cast<double>(place < half ? half - place : place - half);
  return 0.1 + 0.9 * share / static_cast<double>(half);
}

/// A data set of samples that repeat a random pattern. An entry of data.train is the number of samples.
class Repeats final : public fsdp::Samples {
 public:
  explicit Repeats(const fsdp::SamplesRequest& request)
      : length_(request.options.sequence_length),
        vocab_size_(request.vocab_size),
        period_(request.options.plugin_values.get<int64_t>("mixer.period")) {
    for (const std::string& entry : request.entries) {
      int64_t count = 0;
      const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), count);
      if (error != std::errc() || end != entry.data() + entry.size() || count < 1) {
        throw fsdp::Error(fsdp::ErrorKind::kUsage,
                          "data.train must list numbers of samples with the data set repeats, but has \"" +
                              entry + "\"; write a number such as \"4000\"");
      }
      samples_ += count;
    }
  }

  int64_t num_samples() const override { return samples_; }
  int64_t num_tokens() const override { return samples_ * length_; }
  std::string name() const override { return std::to_string(samples_) + " repeats"; }

  Row read(int64_t sample, int64_t* inputs, int64_t* targets) const override {
    std::mt19937_64 random(static_cast<uint64_t>(sample));
    std::vector<int64_t> pattern(static_cast<size_t>(period_));
    for (int64_t& token : pattern)
      token = static_cast<int64_t>(random() % static_cast<uint64_t>(vocab_size_));
    for (int64_t i = 0; i < length_; ++i) {
      inputs[i] = pattern[static_cast<size_t>(i % period_)];
      targets[i] = pattern[static_cast<size_t>((i + 1) % period_)];
    }
    return {.counted = length_};
  }

 private:
  int64_t length_, vocab_size_, period_, samples_ = 0;
};

void add_to(fsdp::Registrar& registrar) {
  registrar.add_key("width_factor", 4.0, "width inside the feed-forward, as a multiple of hidden_size",
                    fsdp::above(0));
  registrar.add_key("gamma", 2.0, "focal loss: how little easy targets count; 0: cross entropy",
                    fsdp::at_least(0));
  registrar.add_key("beta", 0.9, "signum: decay of the momentum", fsdp::between(0, 1));
  registrar.add_key("half_cycle", int64_t{10}, "triangles: steps from the whole rate to a tenth of it",
                    fsdp::at_least(1));
  registrar.add_key("period", int64_t{16}, "repeats: tokens until a row repeats", fsdp::at_least(1));

  registrar.add_model(
      "mixer",
      {.make = [](const fsdp::ModelOptions& options) { return std::make_shared<Mixer>(options); },
       .check = check,
       .deviation = deviation},
      {"width_factor"});
  registrar.add_loss("focal", focal_loss);
  registrar.add_optimizer(
      "signum",
      {.states =
           [](const fsdp::OptimizerOptions&) { return std::vector<fsdp::StateKind>{{"momentum_buffer"}}; },
       .default_weight_decay = 0.01},
      [](const fsdp::OptimizerOptions& options, std::vector<fsdp::FlatParameter> parameters, auto*) {
        return std::make_unique<Signum>(options, std::move(parameters));
      });
  registrar.add_schedule("triangles", triangles);
  registrar.add_dataset(
      "repeats", [](const fsdp::SamplesRequest& request) { return std::make_unique<Repeats>(request); });
}

}  // namespace

FSDP_PLUGIN(mixer, add_to)
