#include "model/nn/parallelize.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/tensor/rectangle_view.h"
#include "base/util/error.h"
#include "model/nn/parallel_layers.h"
#include "model/nn/planned_modules.h"
#include "model/parallel/vocabulary.h"

namespace fsdp::nn {
namespace {

/// A dimension of a parameter and how it is cut.
struct ParameterCut {
  int64_t dimension = 0;
  int64_t blocks = 1, heads = 0;
  bool repeats_heads = false, of_vocabulary = false;
};

class PlannedModel {
 public:
  PlannedModel(const torch::nn::Module& model, const ParallelPlan& plan, int64_t ranks, int64_t rank)
      : ranks_(ranks), rank_(rank), members_(model, plan) {
    describe(model);
  }

  std::vector<ParameterPart> parts() const { return parts_; }
  void apply(torch::nn::Module& model, const std::shared_ptr<comm::Communicator>& group);

 private:
  void describe(const torch::nn::Module& model);
  /// Shared inputs of a column-parallel linear layer; null if no hook sees the calls of the module around it.
  std::shared_ptr<EnteredInputs> entered_inputs(torch::nn::Module& model, const PlannedModule& member);
  void describe_parameters(const PlannedModule& member);
  void cut(const PlannedModule& member, const at::Tensor& parameter, const ParameterCut& cut);
  /// A rank's part of a size, as {first, count}, and who has it.
  std::pair<int64_t, int64_t> part_of_size(const PlannedModule& member, int64_t size, const ParameterCut& cut,
                                           int64_t rank, ParameterPart& part) const;
  ParameterPart& part(const at::Tensor& parameter) {
    return parts_[number_of_.at(parameter.unsafeGetTensorImpl())];
  }

  int64_t ranks_, rank_;
  PlannedModules members_;
  std::vector<ParameterPart> parts_;
  std::vector<at::Tensor> parameters_;       ///< parameters of parts_
  std::map<const void*, size_t> number_of_;  ///< number of a parameter in parts_
  std::set<const void*> described_;          ///< parameters of modules with a style
  /// Keys: the module around the layers, and their input's layout.
  std::map<std::pair<std::string, std::string>, std::shared_ptr<EnteredInputs>> entered_;
};

void PlannedModel::describe(const torch::nn::Module& model) {
  for (const auto& item : model.named_parameters()) {
    const at::Tensor& parameter = item.value();
    if (!number_of_.emplace(parameter.unsafeGetTensorImpl(), parts_.size()).second) continue;
    const auto shape = parameter.sizes().vec();
    parts_.push_back({.name = item.key(),
                      .whole_shape = shape,
                      .shape = shape,
                      .range = {.begin = 0, .end = parameter.numel()},
                      .holders = ranks_});
    parameters_.push_back(parameter);
  }
  for (const PlannedModule& member : members_) describe_parameters(member);
  for (const PlannedModule& member : members_) {
    if (member.has_style()) continue;
    for (const at::Tensor& parameter : member.module->parameters(/*recurse=*/false)) {
      const ParameterPart& described = part(parameter);
      if (described.is_whole()) continue;
      refuse_plan(member.path, "expected the same cut of ", described.name,
                  " wherever it is used; found no style here; add one");
    }
  }
}

void PlannedModel::describe_parameters(const PlannedModule& member) {
  if (member.sequence) {
    for (const at::Tensor& parameter : member.module->parameters(/*recurse=*/false)) {
      part(parameter).shares_gradient = true;
    }
  }
  if (!member.colwise && !member.rowwise) return;
  const SharedLayer& layer = *member.layer;
  if (!member.is_linear()) return cut(member, layer.weight, {.of_vocabulary = true});
  if (member.colwise) {
    ParameterCut of_weight{.dimension = layer.output_dimension(),
                           .blocks = member.colwise->blocks,
                           .heads = member.colwise->heads,
                           .repeats_heads = member.colwise->repeats_heads};
    cut(member, layer.weight, of_weight);
    of_weight.dimension = 0;
    if (layer.bias.defined()) cut(member, layer.bias, of_weight);
  } else {
    cut(member, layer.weight, {.dimension = 1 - layer.output_dimension()});
    if (layer.bias.defined()) {
      part(layer.bias).shares_gradient = std::holds_alternative<Shard>(member.rowwise->output);
    }
  }
}

std::pair<int64_t, int64_t> PlannedModel::part_of_size(const PlannedModule& member, int64_t size,
                                                       const ParameterCut& cut, int64_t rank,
                                                       ParameterPart& part) const {
  part.first_holder = rank;
  part.holders = 1;
  if (cut.of_vocabulary) {
    const auto rows = parallel::vocabulary_rows(size, ranks_, rank);
    return {rows.begin, rows.end - rows.begin};
  }
  const int64_t units = cut.heads > 0 ? cut.heads : size;
  const char* unit = cut.heads > 0 ? "heads" : "features";
  const bool repeats = cut.repeats_heads && units < ranks_;
  const int64_t larger = repeats ? ranks_ : units, smaller = repeats ? units : ranks_;
  if (larger % smaller != 0) {
    refuse_plan(member.path, "expected ",
                cut.repeats_heads ? "a number of heads that divides, or is divided by, " : "",
                cut.repeats_heads ? "the number of ranks" : concat(unit, " that the ranks divide"),
                "; found ", units, " ", unit, " and ", ranks_, " ranks (", larger, " = ", larger / smaller,
                " x ", smaller, " + ", larger % smaller, "); use a number of ranks that divides ", units);
  }
  FSDP_CHECK(size % units == 0, member.path, ": ", size, " features of ", units, " heads");
  if (!repeats) return {rank * (size / ranks_), size / ranks_};
  part.holders = ranks_ / units;
  part.first_holder = rank / part.holders * part.holders;
  part.shares_gradient = true;
  return {rank / part.holders * (size / units), size / units};
}

void PlannedModel::cut(const PlannedModule& member, const at::Tensor& parameter, const ParameterCut& cut) {
  ParameterPart& described = part(parameter);
  const auto dimension = static_cast<size_t>(cut.dimension);
  const std::vector<int64_t>& whole = described.whole_shape;
  if (whole[dimension] % cut.blocks != 0) {
    refuse_plan(member.path, "expected ", cut.blocks, " equal blocks; found ", whole[dimension], " features");
  }
  ParameterPart found = described;
  int64_t rows = cut.blocks, inner = 1;
  for (size_t i = 0; i < whole.size(); ++i) (i < dimension ? rows : inner) *= i == dimension ? 1 : whole[i];
  found.ranges_of_ranks.clear();
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    ParameterPart of_rank = found;
    const auto [first, count] = part_of_size(member, whole[dimension] / cut.blocks, cut, rank, of_rank);
    const util::Rectangle range{.begin = first * inner, .end = (first + count) * inner, .rows = rows};
    found.ranges_of_ranks.push_back(range);
    if (rank != rank_) continue;
    found.range = range;
    found.shape[dimension] = cut.blocks * count;
    found.first_holder = of_rank.first_holder;
    found.holders = of_rank.holders;
    found.shares_gradient = of_rank.shares_gradient;
  }
  const bool is_first = described_.insert(parameter.unsafeGetTensorImpl()).second;
  if (!is_first && found.range != described.range) {
    refuse_plan(member.path, "expected the same cut of ", described.name,
                " wherever it is used; found another one");
  }
  described = std::move(found);
}

// ---- applying it

class PreparedModule final : public CallHook {
 public:
  PreparedModule(const PlannedModule& member, parallel::Ranks ranks)
      : input_(member.input), output_(member.output), ranks_(std::move(ranks)) {}

  std::shared_ptr<void> before(const CallTensors& inputs) override {
    if (!input_) return nullptr;
    FSDP_CHECK(!inputs.empty(), ranks_.layer);
    at::Tensor& x = *inputs.front();
    x = input_->desired == Layout(Replicate{})
            ? parallel::enter_region(x, input_->input, ranks_)
            : parallel::redistribute(x, input_->input, input_->desired, ranks_);
    return nullptr;
  }
  void after(const CallTensors& outputs) override {
    if (!output_) return;
    FSDP_CHECK(!outputs.empty(), ranks_.layer);
    at::Tensor& x = *outputs.front();
    x = parallel::redistribute(x, output_->output, output_->desired, ranks_);
  }

 private:
  std::optional<PrepareModuleInput> input_;
  std::optional<PrepareModuleOutput> output_;
  parallel::Ranks ranks_;
};

std::shared_ptr<EnteredInputs> PlannedModel::entered_inputs(torch::nn::Module& model,
                                                            const PlannedModule& member) {
  const std::string parent = member.parent();
  auto& entered = entered_[{parent, parallel::to_string(member.colwise->input)}];
  if (entered) return entered;
  const auto found = std::ranges::find(members_, parent, &PlannedModule::path);
  auto* around = found == members_.end() ? dynamic_cast<Hookable*>(&model) : found->as<Hookable>();
  if (parent.empty() != (found == members_.end()) || around == nullptr) return nullptr;
  entered = std::make_shared<EnteredInputs>();
  around->attach(entered);
  return entered;
}

void PlannedModel::apply(torch::nn::Module& model, const std::shared_ptr<comm::Communicator>& group) {
  for (const PlannedModule& member : members_) {
    ParallelForm form{.ranks = {group, member.path}};
    if (member.input || member.output) {
      member.as<Hookable>()->attach(std::make_shared<PreparedModule>(member, form.ranks));
    }
    if (member.colwise) {
      if (members_.region_of(member) == nullptr) {
        form.input = member.colwise->input;
        if (member.is_linear()) form.entered = entered_inputs(model, member);
      }
      if (member.colwise->output != Layout(Shard{-1})) form.output = member.colwise->output;
    } else if (member.rowwise) {
      form.output = member.rowwise->output;
      form.sums = true;
      if (member.is_linear() && member.rowwise->input == Layout(Replicate{})) form.input = Replicate{};
    } else {
      continue;
    }
    const SharedLayer& layer = *member.layer;
    const bool cuts_inputs = member.rowwise && member.is_linear();
    form.whole = layer.weight.size(cuts_inputs ? 1 - layer.output_dimension() : layer.output_dimension());
    if (layer.is_of_libtorch) {
      member.as<Hookable>()->attach(parallel_layer(*member.module, std::move(form)));
    } else if (auto* linear = member.as<Linear>()) {
      linear->set_parallel(std::move(form));
    } else if (auto* head = member.as<Head>()) {
      head->set_parallel(std::move(form));
    } else if (auto* embedding = member.as<Embedding>()) {
      embedding->set_parallel(std::move(form));
    }
  }
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (!parts_[i].is_whole()) parameters_[i].set_data(part_of(parameters_[i], parts_[i]));
  }
}

}  // namespace

std::vector<ParameterPart> parameter_parts(const torch::nn::Module& model, const ParallelPlan& plan,
                                           int64_t ranks, int64_t rank) {
  FSDP_CHECK(rank >= 0 && rank < ranks, rank, " of ", ranks);
  return PlannedModel(model, plan, ranks, rank).parts();
}

std::vector<ParameterPart> parallelize(torch::nn::Module& model, const ParallelPlan& plan,
                                       std::shared_ptr<comm::Communicator> group) {
  PlannedModel planned(model, plan, group->world_size(), group->rank());
  if (group->world_size() > 1) planned.apply(model, group);
  return planned.parts();
}

bool is_parallel(const torch::nn::Module& model) {
  const auto modules = model.modules(/*include_self=*/false);
  return std::any_of(modules.begin(), modules.end(), [](const std::shared_ptr<torch::nn::Module>& module) {
    const auto* linear = dynamic_cast<const Linear*>(module.get());
    const auto* embedding = dynamic_cast<const Embedding*>(module.get());
    const auto* hooked = dynamic_cast<const HookedCalls*>(module.get());
    return (linear != nullptr && linear->parallel()) || (embedding != nullptr && embedding->parallel()) ||
           (hooked != nullptr && std::ranges::any_of(hooked->hooks(), [](const auto& hook) {
              return dynamic_cast<const ParallelLayer*>(hook.get()) != nullptr;
            }));
  });
}

at::Tensor part_of(const at::Tensor& whole, const ParameterPart& part) {
  FSDP_CHECK(whole.sizes() == at::IntArrayRef(part.whole_shape), part.name, ": ", whole.sizes());
  return util::rectangle_view(whole.detach().contiguous(), part.range)
      .reshape(part.shape)
      .clone(at::MemoryFormat::Contiguous);
}

}  // namespace fsdp::nn
