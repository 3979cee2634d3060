#include "model/nn/stage_graphs.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <bit>
#include <unordered_set>
#include <utility>

#include "base/tensor/autograd_node.h"
#include "base/util/error.h"
#include "base/util/log.h"
#include "base/util/text.h"
#include "model/kernels/gradient_sink.h"
#include "model/kernels/product_choices.h"
#include "model/nn/parallelize.h"

namespace fsdp::nn {
namespace {

using torch::autograd::variable_list;

/// Bounds of the documents of the pass under way, at an address that does not change.
class GraphDocuments {
 public:
  /// Whether a pass with these documents may show them now. `in_use`: whether backward needs earlier ones.
  bool takes(const StageContext& context, bool in_use) const {
    return !context.documents || (context.document_bounds.defined() && (!in_use || is_shown(context)));
  }
  /// Makes the documents of the context those of graphs. The rest of the documents for which there is memory
  /// are empty. Where there is too little, there will be for twice as many or more, in another place.
  void show(const StageContext& context) {
    if (!context.documents || is_shown(context)) return;
    shown_ = context.documents;
    at::NoGradGuard no_grad;
    const at::Tensor& given = context.document_bounds;
    const int64_t count = given.numel();
    if (!bounds_.defined() || bounds_.numel() < count) {
      bounds_ = at::empty({static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count - 1))) + 1},
                          given.options());
    }
    bounds_.narrow(0, 0, count).copy_(given);
    const int64_t others = bounds_.numel() - count;
    if (others > 0) bounds_.narrow(0, count, others).copy_(given.narrow(0, count - 1, 1).expand({others}));
  }
  /// As a recording reads it. Requires: its documents are shown.
  StageContext as_recorded(const StageContext& context) const {
    StageContext recorded = context;
    if (!context.documents) return recorded;
    recorded.documents = nullptr;
    // With a version counter of its own, so that a later pass's write does not invalidate saved tensors.
    recorded.document_bounds = bounds_.variable_data();
    return recorded;
  }

 private:
  bool is_shown(const StageContext& context) const { return shown_ == context.documents; }

  at::Tensor bounds_;
  std::shared_ptr<const DocumentStarts> shown_;
};

struct SharedGraphs {
  struct Pool {
    std::shared_ptr<util::DeviceGraphPool> graphs;
    int64_t recorded = 0, launched = 0;  ///< launched: number of the pass's last launch
  };

  util::MakeGraphPool make_pool;
  GraphCounts counts;
  std::unordered_set<const void*> outputs;  ///< outputs of graphs, whose addresses do not change
  std::vector<std::shared_ptr<Pool>> pools;
  std::shared_ptr<Pool> of_this_pass;  ///< null before the pass's first recording
  int64_t in_use = 0;                  ///< forward graphs whose backward has not run yet
  GraphDocuments documents;
  bool warned = false;

  /// Called when no earlier pass's activations are needed, so that they may be overwritten.
  void begin_pass() {
    of_this_pass = nullptr;
    for (const auto& pool : pools) pool->launched = 0;
  }
};

/// A graph and its number in its pool.
class OrderedGraph {
 public:
  /// Graphs of a pool must be launched in the order of recording. So graphs of one pass share a pool, and
  /// each pass that records gets a new one.
  void record(SharedGraphs& shared, const std::function<void()>& work) {
    if (!shared.of_this_pass) {
      shared.of_this_pass = std::make_shared<SharedGraphs::Pool>(SharedGraphs::Pool{shared.make_pool()});
      shared.pools.push_back(shared.of_this_pass);
    }
    pool_ = shared.of_this_pass;
    graph_ = pool_->graphs->record(work);
    number_ = pool_->launched = ++pool_->recorded;
    ++shared.counts.recorded;
  }
  bool is_next() const { return number_ > pool_->launched; }
  void launch(SharedGraphs& shared) {
    pool_->launched = number_;
    graph_->launch();
    ++shared.counts.launched;
  }

 private:
  std::shared_ptr<SharedGraphs::Pool> pool_;
  std::unique_ptr<util::DeviceGraph> graph_;
  int64_t number_ = 0;
};

/// A tensor that a graph reads: a copy, or the given tensor's own memory if its address does not change.
class GraphInput {
 public:
  GraphInput(const SharedGraphs& shared, const at::Tensor& given)
      : is_given_(shared.outputs.count(given.const_data_ptr()) > 0 && given.is_contiguous()) {
    at::NoGradGuard no_grad;
    memory_ = is_given_ ? given.detach() : at::empty_like(given, at::MemoryFormat::Contiguous);
    put(given);
  }

  /// Returns a leaf with a version counter of its own, so that a later pass's write does not invalidate this
  /// pass's saved tensors.
  at::Tensor as_leaf(bool requires_grad) const {
    return memory_.variable_data().set_requires_grad(requires_grad);
  }
  bool takes(const at::Tensor& given) const {
    return given.sizes() == memory_.sizes() && given.scalar_type() == memory_.scalar_type() &&
           (!is_given_ || (given.const_data_ptr() == memory_.const_data_ptr() && given.is_contiguous()));
  }
  void put(const at::Tensor& given) {
    at::NoGradGuard no_grad;
    if (given.const_data_ptr() != memory_.const_data_ptr()) memory_.copy_(given);
  }

 private:
  bool is_given_;
  at::Tensor memory_;
};

/// Addresses of the storages of tensors whose shapes and offsets do not change; null for those without
/// memory.
using Addresses = std::vector<const void*>;

void append_addresses(Addresses& addresses, const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    addresses.push_back(tensor.defined()
                            ? tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get()
                            : nullptr);
  }
}

/// Restores, within a scope, the tensor versions that autograd saw at recording. Parameters may have been
/// updated in place since then, which is valid: each launch of the forward graph recomputes what backward
/// needs.
class VersionsAsRecorded {
 public:
  VersionsAsRecorded(const std::vector<at::Tensor>& tensors, const std::vector<int64_t>& versions)
      : tensors_(tensors), now_(of(tensors)) {
    set(versions);
  }
  ~VersionsAsRecorded() { set(now_); }
  VersionsAsRecorded(const VersionsAsRecorded&) = delete;
  VersionsAsRecorded& operator=(const VersionsAsRecorded&) = delete;

  static std::vector<int64_t> of(const std::vector<at::Tensor>& tensors) {
    std::vector<int64_t> versions;
    for (const at::Tensor& tensor : tensors) versions.push_back(tensor._version());
    return versions;
  }

 private:
  void set(const std::vector<int64_t>& versions) {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      c10::VariableVersion counter =
          torch::autograd::impl::version_counter(tensors_[i]);  // shared with views
      counter.set_version(versions[i]);
    }
  }

  const std::vector<at::Tensor>& tensors_;
  std::vector<int64_t> now_;
};

struct BackwardGraph {
  Addresses addresses;
  GraphInput gradient;
  OrderedGraph graph = {};
  std::vector<kernels::TakenPlace> taken = {};
  variable_list results = {};  ///< results of differentiate()
};

struct ForwardGraph {
  Addresses addresses;
  std::vector<int64_t> versions;  ///< versions of the parameters and buffers when it was recorded
  int64_t layer;
  bool differentiates_input;
  GraphInput input;
  OrderedGraph graph = {};
  at::Tensor leaf = {}, output = {};  ///< ends of an autograd graph, which is kept
  std::vector<std::unique_ptr<BackwardGraph>> backward = {};
  bool is_in_use = false;  ///< a backward still needs its activations
};

struct GraphedStage {
  std::shared_ptr<SharedGraphs> shared;
  std::string name;
  std::vector<at::Tensor> parameters, state;  ///< state: parameters and buffers
  std::vector<std::shared_ptr<ForwardGraph>> forward;

  Addresses addresses(const StageContext& context) const {
    Addresses result;
    append_addresses(result, state);
    append_addresses(result, {context.rotary_cos, context.rotary_sin, context.local_rotary_cos,
                              context.local_rotary_sin, context.document_bounds});
    return result;
  }

  /// Adds the stage's name to errors of `record`, but not to those of a lack of memory, which callers handle.
  template <typename Record>
  void recording(const char* pass, const Record& record) const {
    try {
      record();
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const c10::Error& error) {
      fail(ErrorKind::kUnexpected, "recording the ", pass, " of ", name,
           " as a CUDA graph: ", error.what_without_backtrace(),
           "; if the stage works without recording, set training.cuda_graphs = false");
    }
  }

  /// Counts a pass without a graph after kGraphsOfAStage recordings; warns once.
  void run_plainly() const {
    ++shared->counts.plain;
    if (shared->warned) return;
    shared->warned = true;
    util::log_warning(concat("training.cuda_graphs: ", name, " has been recorded ", kGraphsOfAStage,
                             " times, because its shapes or the addresses of its tensors changed; with "
                             "further shapes or addresses it is launched kernel by kernel, and perhaps "
                             "other stages are too"));
  }
};

/// Gradients of the leaf and of each parameter; undefined if not required or in a sink. Keeps the graph.
variable_list differentiate(const GraphedStage& stage, const ForwardGraph& forward,
                            const at::Tensor& gradient) {
  const VersionsAsRecorded versions(stage.state, forward.versions);
  variable_list inputs;
  if (forward.differentiates_input) inputs.push_back(forward.leaf);
  for (const at::Tensor& parameter : stage.parameters) {
    if (parameter.requires_grad()) inputs.push_back(parameter);
  }
  variable_list found = torch::autograd::grad({forward.output}, inputs, {gradient}, /*retain_graph=*/true,
                                              /*create_graph=*/false, /*allow_unused=*/true);
  size_t next = 0;
  variable_list results{forward.differentiates_input ? found[next++] : at::Tensor()};
  for (const at::Tensor& parameter : stage.parameters) {
    results.push_back(parameter.requires_grad() ? found[next++] : at::Tensor());
  }
  return results;
}

/// The autograd node of the stage: gradient of the output in, gradients of the input and the parameters out.
class GraphedBackward final : public torch::autograd::Node {
 public:
  GraphedBackward(std::shared_ptr<GraphedStage> stage, std::shared_ptr<ForwardGraph> forward)
      : stage_(std::move(stage)), forward_(std::move(forward)) {
    forward_->is_in_use = true;
    ++stage_->shared->in_use;
  }
  ~GraphedBackward() override { give_back(); }

  variable_list apply(variable_list&& gradients) override {
    if (at::GradMode::is_enabled()) {
      fail(ErrorKind::kUsage, "backward of ", stage_->name,
           ": training.cuda_graphs supports first derivatives only, but this backward pass has "
           "create_graph = true; set training.cuda_graphs = false");
    }
    if (!holds_) {
      fail(ErrorKind::kUsage, "backward of ", stage_->name,
           ": an earlier backward pass has freed the activations of its forward; call that one "
           "with retain_graph = true, or set training.cuda_graphs = false");
    }
    const at::Tensor& gradient = gradients[0];
    if (!gradient.defined()) return variable_list(1 + stage_->parameters.size());
    Addresses addresses;
    append_addresses(addresses, stage_->parameters);
    for (const auto& graph : forward_->backward) {
      if (graph->addresses != addresses || !graph->gradient.takes(gradient) || !graph->graph.is_next())
        continue;
      if (!kernels::take_again(graph->taken)) continue;
      graph->gradient.put(gradient);
      graph->graph.launch(*stage_->shared);
      return graph->results;
    }
    if (forward_->backward.size() < kGraphsOfAStage) return record(std::move(addresses), gradient);
    stage_->run_plainly();
    return differentiate(*stage_, *forward_, gradient);
  }

  void release_variables() override { give_back(); }
  std::string name() const override { return "GraphedBackward"; }

 private:
  variable_list record(Addresses addresses, const at::Tensor& gradient) {
    SharedGraphs& shared = *stage_->shared;
    auto graph = std::unique_ptr<BackwardGraph>(
        new BackwardGraph{.addresses = std::move(addresses), .gradient = GraphInput(shared, gradient)});
    const at::Tensor given = graph->gradient.as_leaf(false);
    stage_->recording("backward", [&] {
      graph->graph.record(shared, [&] {
        kernels::TakenPlaces taken;
        graph->results = differentiate(*stage_, *forward_, given);
        graph->taken = std::move(taken.places);
      });
    });
    for (const at::Tensor& result : graph->results) {
      if (result.defined()) shared.outputs.insert(result.const_data_ptr());
    }
    forward_->backward.push_back(std::move(graph));
    return forward_->backward.back()->results;
  }

  void give_back() {
    if (!std::exchange(holds_, false)) return;
    forward_->is_in_use = false;
    --stage_->shared->in_use;
  }

  std::shared_ptr<GraphedStage> stage_;
  std::shared_ptr<ForwardGraph> forward_;
  bool holds_ = true;  ///< the activations
};

class StageGraphs final : public StageHook {
 public:
  explicit StageGraphs(std::shared_ptr<GraphedStage> stage) : stage_(std::move(stage)) {}

  at::Tensor around(Stage&, const at::Tensor& input, const Next& next) override {
    const StageContext& context = next.context();
    if (!at::GradMode::is_enabled() || context.dropout || context.cache != nullptr) return next(input);
    // A graph would keep the algorithms of products, which trials may yet choose.
    const kernels::ProductChoices* const products = kernels::product_choices(input.device());
    if (plain_passes_ < kPassesBeforeGraphs || (products != nullptr && !products->is_settled())) {
      ++plain_passes_;
      return next(input);
    }
    SharedGraphs& shared = *stage_->shared;
    if (shared.in_use == 0) shared.begin_pass();
    if (!shared.documents.takes(context, shared.in_use > 0)) {
      ++shared.counts.plain;
      return next(input);
    }
    shared.documents.show(context);
    const Next graphed = next.with(shared.documents.as_recorded(context));
    const Addresses addresses = stage_->addresses(graphed.context());
    bool is_in_use = false;
    for (const auto& graph : stage_->forward) {
      is_in_use = is_in_use || graph->is_in_use;
      if (graph->addresses != addresses || graph->layer != context.layer || !graph->graph.is_next() ||
          graph->differentiates_input != input.requires_grad() || !graph->input.takes(input)) {
        continue;
      }
      graph->input.put(input);
      graph->graph.launch(shared);
      return result_of(graph, input);
    }
    // A second forward before the backward of the first is too rare for graphs.
    if (is_in_use) {
      ++shared.counts.plain;
      return next(input);
    }
    if (stage_->forward.size() >= kGraphsOfAStage) {
      stage_->run_plainly();
      return next(input);
    }
    return result_of(record(addresses, input, graphed), input);
  }

 private:
  std::shared_ptr<ForwardGraph> record(const Addresses& addresses, const at::Tensor& input,
                                       const Next& next) {
    SharedGraphs& shared = *stage_->shared;
    auto graph =
        std::shared_ptr<ForwardGraph>(new ForwardGraph{.addresses = addresses,
                                                       .versions = VersionsAsRecorded::of(stage_->state),
                                                       .layer = next.context().layer,
                                                       .differentiates_input = input.requires_grad(),
                                                       .input = GraphInput(shared, input)});
    graph->leaf = graph->input.as_leaf(input.requires_grad());
    stage_->recording("forward", [&] {
      const kernels::AllParametersSeen seen;
      graph->graph.record(shared, [&] { graph->output = next(graph->leaf); });
    });
    shared.outputs.insert(graph->output.const_data_ptr());
    stage_->forward.push_back(graph);
    return graph;
  }

  at::Tensor result_of(const std::shared_ptr<ForwardGraph>& graph, const at::Tensor& input) const {
    at::Tensor output = graph->output.detach();
    if (!graph->output.requires_grad()) return output;
    const auto node = util::make_node<GraphedBackward>(stage_, graph);
    variable_list inputs{input};
    inputs.insert(inputs.end(), stage_->parameters.begin(), stage_->parameters.end());
    node->set_next_edges(torch::autograd::collect_next_edges(inputs));
    torch::autograd::set_history(output, node);
    return output;
  }

  std::shared_ptr<GraphedStage> stage_;
  int plain_passes_ = 0;
};

}  // namespace

std::shared_ptr<const GraphCounts> graph_stages(Stage& root, const std::vector<std::string>& stage_types,
                                                util::MakeGraphPool make_pool) {
  const auto stages = outermost_stages(root, stage_types);
  if (stages.empty()) {
    fail(ErrorKind::kUsage, "graph_stages(): expected a model with stages of type ",
         util::join(stage_types, " or "), "; found none in ", root.type_name(), "; name types that it has");
  }
  if (is_parallel(root)) {
    fail(ErrorKind::kUsage, "graph_stages(): expected stages that one rank computes; found a model whose ",
         "layers several ranks share, and graphs record no collectives; set training.cuda_graphs = false");
  }
  auto shared = std::make_shared<SharedGraphs>();
  shared->make_pool = std::move(make_pool);
  for (const auto& [name, stage] : stages) {
    auto graphed = std::make_shared<GraphedStage>();
    graphed->shared = shared;
    graphed->name = name;
    graphed->parameters = graphed->state = stage->parameters();
    for (const at::Tensor& buffer : stage->buffers()) graphed->state.push_back(buffer);
    stage->attach(std::make_shared<StageGraphs>(std::move(graphed)));
  }
  return {shared, &shared->counts};
}

}  // namespace fsdp::nn
