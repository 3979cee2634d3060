#include "model/nn/recompute.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "base/tensor/autocast.h"
#include "base/tensor/autograd_node.h"
#include "base/util/error.h"
#include "base/util/text.h"

namespace fsdp::nn {
namespace {

/// States of the default random number generators that a stage on some device uses; bytes in host memory.
class RandomState {
 public:
  explicit RandomState(const at::Device& device) {
    add(at::Device(at::kCPU));
    if (!device.is_cpu() && !device.is_meta()) add(device);
  }

  void restore() const {
    for (const auto& [device, bytes] : states_) {
      at::Generator generator = at::globalContext().defaultGenerator(device);
      std::lock_guard lock(generator.mutex());
      generator.set_state(bytes);
    }
  }

  bool operator==(const RandomState& other) const {
    return std::equal(
        states_.begin(), states_.end(), other.states_.begin(), other.states_.end(),
        [](const auto& a, const auto& b) { return a.first == b.first && a.second.equal(b.second); });
  }

 private:
  void add(const at::Device& device) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    std::lock_guard lock(generator.mutex());
    states_.emplace_back(device, generator.get_state());
  }

  std::vector<std::pair<at::Device, at::Tensor>> states_;
};

struct RandomStateGuard {
  RandomState before;
  ~RandomStateGuard() { before.restore(); }
};

/// The graph node of the whole stage: gradient of the output in, gradient of the input out. Gradients of the
/// parameters are accumulated by the inner backward pass of apply().
class RecomputeBackward final : public torch::autograd::Node {
 public:
  RecomputeBackward(const at::Tensor& input, StageHook::Next next, std::optional<RandomState> random_state)
      : input_(input, /*is_output=*/false),
        next_(std::move(next)),
        random_state_(std::move(random_state)),
        autocast_(input.device()) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    if (at::GradMode::is_enabled()) {
      fail(ErrorKind::kUsage,
           "recomputed stages have first derivatives only, but this backward pass has "
           "create_graph = true; set activation_checkpointing.mode = \"none\" for higher "
           "derivatives");
    }
    if (!torch::autograd::Engine::get_default_engine().is_checkpoint_valid()) {
      fail(ErrorKind::kUsage,
           "recomputed stages need a backward pass over all leaves, but this one is restricted "
           "to certain inputs; call backward() without inputs or set "
           "activation_checkpointing.mode = \"none\"");
    }
    if (!gradients[0].defined()) return {at::Tensor()};
    at::Tensor input = input_.unpack();
    // A new leaf, so that the inner pass ends here and not in the graph before the stage.
    at::Tensor leaf = input.detach();
    leaf.set_requires_grad(input.requires_grad());
    at::Tensor output = run_again(leaf);
    // Not every stage's output depends on its input or parameters.
    if (output.requires_grad()) {
      torch::autograd::backward({output}, {std::move(gradients[0])}, /*retain_graph=*/false);
    }
    return {leaf.grad()};
  }

  void release_variables() override {
    input_.reset_data();
    next_ = {};
    random_state_.reset();
  }

  std::string name() const override { return "RecomputeBackward"; }

 private:
  at::Tensor run_again(const at::Tensor& input) {
    at::AutoGradMode record(true);
    const util::AutocastScope as_in_forward(autocast_);
    if (!random_state_) return next_(input);
    const RandomStateGuard guard{RandomState(input.device())};
    random_state_->restore();
    return next_(input);
  }

  torch::autograd::SavedVariable input_;
  StageHook::Next next_;
  std::optional<RandomState> random_state_;  ///< none if forward drew no random numbers
  util::AutocastState autocast_;
};

bool requires_grad(const at::Tensor& tensor) { return tensor.requires_grad(); }

}  // namespace

at::Tensor Recompute::around(Stage& stage, const at::Tensor& input, const Next& next) {
  if (!at::GradMode::is_enabled()) return next(input);
  if (!requires_grad(input)) {
    auto parameters = stage.parameters();
    if (std::none_of(parameters.begin(), parameters.end(), requires_grad)) return next(input);
  }
  std::optional<RandomState> random_state(input.device());
  at::Tensor output;
  {
    at::NoGradGuard no_recording;
    const util::NoAutocastCache no_cache;  // as in backward
    // A new tensor, since the output may be the input or a view of it.
    output = next(input).detach();
  }
  if (*random_state == RandomState(input.device())) random_state.reset();
  const auto node = util::make_node<RecomputeBackward>(input, next, std::move(random_state));
  node->set_next_edges(torch::autograd::collect_next_edges(input));
  torch::autograd::set_history(output, node);
  return output;
}

void check_recomputed_types(const Stage& root, const std::vector<std::string>& stage_types) {
  if (stage_types.empty()) {
    fail(ErrorKind::kUsage,
         "activation_checkpointing.stage_types must list the types of the stages to "
         "recompute, but is empty; add one, such as \"block\"");
  }
  std::set<std::string> known;
  for (const auto& module : root.modules(/*include_self=*/false)) {
    if (auto* stage = dynamic_cast<Stage*>(module.get())) known.insert(stage->type_name());
  }
  known.erase(root.type_name());
  std::vector<std::string> names(known.begin(), known.end());
  for (const std::string& type : stage_types) {
    if (type == root.type_name()) {
      fail(ErrorKind::kUsage, "activation_checkpointing.stage_types contains \"", type,
           "\", the whole model, whose recomputation saves no memory; list stages inside it: ",
           util::join(names, ", "));
    }
    if (known.count(type) == 0) {
      std::string near = util::nearest(type, names);
      fail(ErrorKind::kUsage, "activation_checkpointing.stage_types contains \"", type,
           "\", but no stage of the model has that type; expected one of: ", util::join(names, ", "),
           near.empty() ? "" : concat("; did you mean \"", near, "\"?"));
    }
  }
}

void checkpoint_activations(Stage& root, const std::vector<std::string>& stage_types) {
  check_recomputed_types(root, stage_types);
  for (const auto& [name, stage] : outermost_stages(root, stage_types)) {
    stage->attach(std::make_shared<Recompute>());
  }
}

void offload_activations(Stage& root, const std::vector<std::string>& stage_types,
                         const OffloadOptions& options) {
  check_recomputed_types(root, stage_types);
  const auto stages = outermost_stages(root, stage_types);
  const auto host = make_host_activations(options);
  for (const auto& [name, stage] : stages) {
    stage->attach(std::make_shared<Offload>(host, stage != stages.back().second));
    stage->attach(std::make_shared<Recompute>());
  }
}

namespace {

/// Hooks every stage of which some are moved to host memory.
void offload_chosen(Stage& root, const CheckpointingOptions& options) {
  std::set<std::string> moved;
  for (const StageRecomputation& stage : *options.chosen) {
    if (stage.offload) moved.insert(stage.path);
  }
  if (moved.empty()) return;
  const auto host = make_host_activations({.patience = options.offload_patience});
  for (const auto& [path, stage] : outermost_stages(root, options.stage_types)) {
    stage->attach(std::make_shared<Offload>(host, moved.contains(path)));
  }
}

}  // namespace

void apply_checkpointing(Stage& root, const CheckpointingOptions& options) {
  if (options.mode == RecomputeMode::kFull) checkpoint_activations(root, options.stage_types);
  if (!has_budget(options.mode)) return;
  FSDP_CHECK(options.chosen, "nothing was chosen for memory_budget ", options.memory_budget);
  offload_chosen(root, options);  // outside of recomputation, whose input is moved
  for (const StageRecomputation& part : *options.chosen) {
    auto* stage = dynamic_cast<Stage*>(root.named_modules()[part.path].get());
    FSDP_CHECK(stage != nullptr, part.path);
    if (part.whole) stage->attach(std::make_shared<Recompute>());
    if (!part.operations.empty()) stage->recompute(part.operations);
  }
}

}  // namespace fsdp::nn
