#include "model/nn/recompute.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
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

/// Tokens that a stage computes at a time.
struct TokenRange {
  int64_t begin, count;
  StageHook::Next next;

  /// The range of x, [B, T, ..]; x itself if that is all of it.
  at::Tensor of(const at::Tensor& x) const {
    return count == x.size(1) ? x : x.narrow(1, begin, count).contiguous();
  }
};

/// Ranges of at most `tokens` tokens of each row; a row's pieces (StageContext::tokens) have their own.
std::vector<TokenRange> ranges_of(const at::Tensor& input, const StageHook::Next& next, int64_t tokens) {
  if (tokens == 0 || input.dim() != 3 || input.size(1) <= tokens) {
    return {{0, input.dim() > 1 ? input.size(1) : 0, next}};
  }
  const kernels::RowPieces& pieces = next.context().tokens;
  const int64_t length = input.size(1) / pieces.count;
  std::vector<TokenRange> ranges;
  for (int64_t piece = 0; piece < pieces.count; ++piece) {
    for (int64_t first = 0; first < length; first += tokens) {
      StageContext context = next.context();
      context.tokens = {.begins = {pieces.begins[piece] + first}};
      ranges.push_back({.begin = piece * length + first,
                        .count = std::min(tokens, length - first),
                        .next = next.with(std::move(context))});
    }
  }
  return ranges;
}

/// The results of all ranges.
at::Tensor compute_ranges(const at::Tensor& input, const std::vector<TokenRange>& ranges) {
  if (ranges.size() == 1) return ranges.front().next(input);
  at::Tensor output;
  for (const TokenRange& range : ranges) {
    const at::Tensor part = range.next(range.of(input));
    if (!output.defined()) {
      output = at::empty({part.size(0), input.size(1), part.size(2)}, part.options());
    }
    output.narrow(1, range.begin, range.count).copy_(part);
  }
  return output;
}

/// The graph node of the whole stage: gradient of the output in, gradient of the input out. Gradients of the
/// parameters are accumulated by the inner backward passes of apply().
class RecomputeBackward final : public torch::autograd::Node {
 public:
  RecomputeBackward(const at::Tensor& input, std::vector<TokenRange> ranges,
                    std::optional<RandomState> random_state)
      : input_(input, /*is_output=*/false),
        ranges_(std::move(ranges)),
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
    const at::Tensor input = input_.unpack();
    std::optional<RandomStateGuard> guard;
    if (random_state_) {
      guard.emplace(RandomState(input.device()));
      random_state_->restore();
    }
    const auto leaf_of = [&input](const at::Tensor& part) {
      // A new leaf, so that the inner pass ends here and not in the graph before the stage.
      at::Tensor leaf = part.detach();
      leaf.set_requires_grad(input.requires_grad());
      return leaf;
    };
    if (ranges_.size() == 1) {
      return {run_again(leaf_of(input), ranges_.front(), std::move(gradients[0]))};
    }
    at::Tensor gradient;
    for (const TokenRange& range : ranges_) {
      const at::Tensor part = run_again(leaf_of(range.of(input)), range, range.of(gradients[0]));
      if (!part.defined()) continue;
      if (!gradient.defined()) gradient = at::empty(input.sizes(), part.options());
      gradient.narrow(1, range.begin, range.count).copy_(part);
    }
    return {gradient};
  }

  void release_variables() override {
    input_.reset_data();
    ranges_.clear();
    random_state_.reset();
  }

  std::string name() const override { return "RecomputeBackward"; }

 private:
  /// Returns the gradient of the input, a leaf, given that of the output.
  at::Tensor run_again(const at::Tensor& leaf, const TokenRange& range, at::Tensor&& gradient) {
    at::Tensor output;
    {
      at::AutoGradMode record(true);
      const util::AutocastScope as_in_forward(autocast_);
      output = range.next(leaf);
    }
    // Not every stage's output depends on its input or parameters.
    if (output.requires_grad()) {
      torch::autograd::backward({output}, {std::move(gradient)}, /*retain_graph=*/false);
    }
    return leaf.grad();
  }

  torch::autograd::SavedVariable input_;
  std::vector<TokenRange> ranges_;
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
  std::vector<TokenRange> ranges = ranges_of(input, next, tokens_);
  at::Tensor output;
  {
    at::NoGradGuard no_recording;
    const util::NoAutocastCache no_cache;  // as in backward
    // A new tensor, since the output may be the input or a view of it.
    output = compute_ranges(input, ranges).detach();
  }
  if (*random_state == RandomState(input.device())) random_state.reset();
  const auto node = util::make_node<RecomputeBackward>(input, std::move(ranges), std::move(random_state));
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

/// Does what was chosen for a budget of memory.
void apply_choice(Stage& root, const CheckpointingOptions& options) {
  FSDP_CHECK(options.chosen, "nothing was chosen for memory_budget ", options.memory_budget);
  offload_chosen(root, options);  // outside of recomputation, whose input is moved
  for (const StageRecomputation& part : *options.chosen) {
    auto* stage = dynamic_cast<Stage*>(root.named_modules()[part.path].get());
    FSDP_CHECK(stage != nullptr, part.path);
    if (part.whole) stage->attach(std::make_shared<Recompute>());
    if (!part.operations.empty()) stage->recompute(part.operations);
  }
}

}  // namespace

void apply_checkpointing(Stage& root, const CheckpointingOptions& options) {
  if (options.mode == RecomputeMode::kFull) checkpoint_activations(root, options.stage_types);
  if (has_budget(options.mode)) apply_choice(root, options);
  if (options.feed_forward_tokens == 0) return;
  for (const auto& [name, stage] : outermost_stages(root, {"feed_forward"})) {
    stage->attach(std::make_shared<Recompute>(options.feed_forward_tokens));
  }
}

}  // namespace fsdp::nn
