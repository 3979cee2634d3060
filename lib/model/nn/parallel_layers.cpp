#include "model/nn/parallel_layers.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "base/util/error.h"
#include "model/parallel/vocabulary.h"

namespace fsdp::nn {
namespace {

int64_t version_of(const at::Tensor& x) { return x.is_inference() ? 0 : x._version(); }

class ParallelLinear final : public ParallelLayer {
 public:
  ParallelLinear(torch::nn::LinearImpl& layer, ParallelForm form)
      : ParallelLayer(std::move(form)), layer_(layer) {}

  std::shared_ptr<void> before(const CallTensors& inputs) override {
    FSDP_CHECK(inputs.size() == 1, form().ranks.layer, ": ", inputs.size());
    at::Tensor& x = *inputs.front();
    x = form().enter(x);
    require_features(x);
    if (!form().sums) return nullptr;
    // Added once, to the sum.
    auto bias = std::make_shared<Aside>(layer_.bias);
    bias_ = bias->value;
    return bias;
  }

  void after(const CallTensors& outputs) override {
    at::Tensor& y = *outputs.front();
    y = form().leave(y);
    if (form().sums && bias_.defined()) y = y + bias_.to(y.scalar_type());
  }

 private:
  /// A member that is undefined meanwhile.
  struct Aside {
    explicit Aside(at::Tensor& given) : member(given), value(std::exchange(given, at::Tensor())) {}
    ~Aside() { member = value; }
    Aside(const Aside&) = delete;
    Aside& operator=(const Aside&) = delete;
    at::Tensor& member;
    at::Tensor value;
  };

  void require_features(const at::Tensor& x) const {
    const int64_t whole = layer_.options.in_features(), ranks = form().ranks.count();
    const int64_t expected = form().sums ? whole / ranks : whole;
    if (x.size(-1) == expected) return;
    fail(ErrorKind::kUsage, form().ranks.layer, ": expected a last dimension of ", expected,
         form().sums ? concat(" (", whole, " features over ", ranks, " ranks: each has a part)")
                     : " (each rank needs all features)",
         "; found ", x.size(-1), " in ", x.sizes(), "; ",
         form().sums ? "cut what comes before it over the same ranks"
                     : "put a row-parallel layer before it, or leave what comes before it whole");
  }

  torch::nn::LinearImpl& layer_;
  at::Tensor bias_;
};

class ParallelEmbedding final : public ParallelLayer {
 public:
  using ParallelLayer::ParallelLayer;

  std::shared_ptr<void> before(const CallTensors& inputs) override {
    at::Tensor& ids = *inputs.front();
    auto local = parallel::local_ids(ids, form().whole, form().ranks);
    ids = std::move(local.ids);
    elsewhere_ = std::move(local.elsewhere);
    return nullptr;
  }
  void after(const CallTensors& outputs) override {
    at::Tensor& found = *outputs.front();
    found = form().leave(found.masked_fill(std::exchange(elsewhere_, at::Tensor()).unsqueeze(-1), 0));
  }

 private:
  at::Tensor elsewhere_;
};

}  // namespace

std::optional<SharedLayer> shared_layer(torch::nn::Module& module) {
  using enum SharedLayer::LayerKind;
  if (const auto* linear = dynamic_cast<const Linear*>(&module)) {
    return SharedLayer{.kind = kLinear,
                       .weight = linear->weight(),
                       .bias = linear->bias(),
                       .is_transposed = linear->is_transposed()};
  }
  if (const auto* embedding = dynamic_cast<const Embedding*>(&module))
    return SharedLayer{.kind = kEmbedding, .weight = embedding->weight()};
  if (const auto* head = dynamic_cast<const Head*>(&module))
    return SharedLayer{.kind = kHead, .weight = head->weight()};
  if (const auto* linear = dynamic_cast<const torch::nn::LinearImpl*>(&module))
    return SharedLayer{
        .kind = kLinear, .weight = linear->weight, .bias = linear->bias, .is_of_libtorch = true};
  if (const auto* embedding = dynamic_cast<const torch::nn::EmbeddingImpl*>(&module))
    return SharedLayer{.kind = kEmbedding, .weight = embedding->weight, .is_of_libtorch = true};
  return std::nullopt;
}

at::Tensor EnteredInputs::enter(const at::Tensor& x, const parallel::Layout& from,
                                const parallel::Ranks& ranks) {
  const bool is_recorded = at::GradMode::is_enabled();
  if (last_ && last_->x.is_same(x) && last_->version == version_of(x) && last_->is_recorded == is_recorded) {
    return last_->result;
  }
  at::Tensor result = parallel::enter_region(x, from, ranks);
  if (is_open_) last_ = Entered{x, result, version_of(x), is_recorded};
  return result;
}

std::shared_ptr<void> EnteredInputs::before(const CallTensors&) {
  is_open_ = true;
  const auto close = [self = shared_from_this()](void*) {
    self->is_open_ = false;
    self->last_.reset();
  };
  return {static_cast<void*>(this), close};
}

std::shared_ptr<ParallelLayer> parallel_layer(torch::nn::Module& layer, ParallelForm form) {
  if (auto* linear = dynamic_cast<torch::nn::LinearImpl*>(&layer))
    return std::make_shared<ParallelLinear>(*linear, std::move(form));
  return std::make_shared<ParallelEmbedding>(std::move(form));
}

}  // namespace fsdp::nn
