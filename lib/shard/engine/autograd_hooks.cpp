#include "shard/engine/autograd_hooks.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <iterator>

#include "base/tensor/autograd_node.h"
#include "base/util/error.h"
#include "model/kernels/recomputed.h"

namespace fsdp::shard {
namespace {

/// A graph node that calls a function and passes the gradients on.
class BackwardEnd final : public torch::autograd::Node {
 public:
  explicit BackwardEnd(std::function<void()> ended) : ended_(std::move(ended)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    ended_();
    return std::move(gradients);
  }
  std::string name() const override { return "FsdpBackwardEnd"; }

 private:
  std::function<void()> ended_;
};

}  // namespace

std::vector<at::Tensor*> differentiable(const std::vector<at::Tensor*>& tensors) {
  std::vector<at::Tensor*> found;
  std::copy_if(tensors.begin(), tensors.end(), std::back_inserter(found),
               [](const at::Tensor* tensor) { return tensor->requires_grad(); });
  return found;
}

void when_backward_ends(const std::vector<at::Tensor*>& inputs, std::function<void()> ended) {
  const auto node = util::make_node<BackwardEnd>(std::move(ended));
  torch::autograd::edge_list edges;
  for (const at::Tensor* input : inputs) {
    FSDP_CHECK(input->requires_grad());
    edges.push_back(torch::autograd::impl::gradient_edge(*input));
  }
  node->set_next_edges(std::move(edges));
  for (at::Tensor* input : inputs) {
    at::Tensor output = input->detach();
    torch::autograd::set_history(output, node);
    kernels::recompute_as(output, *input);
    *input = std::move(output);
  }
}

void when_backward_begins(const at::Tensor& output, std::function<void()> begins) {
  FSDP_CHECK(output.requires_grad());
  output.register_hook([begins = std::move(begins)](const at::Tensor&) { begins(); });
}

bool is_in_backward_pass() { return torch::autograd::get_current_graph_task_id() != -1; }

void when_whole_backward_ends(std::function<void()> ended) {
  torch::autograd::Engine::get_default_engine().queue_callback(std::move(ended));
}

}  // namespace fsdp::shard
