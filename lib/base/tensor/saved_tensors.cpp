#include "base/tensor/saved_tensors.h"

#include <torch/csrc/autograd/engine.h>

#include <mutex>
#include <typeinfo>
#include <utility>

#include "base/tensor/autograd_node.h"
#include "base/util/error.h"

namespace fsdp::util {
namespace {

thread_local SavedTensorScope* innermost = nullptr;

}  // namespace

/// The answer to libtorch's question.
struct SavedTensorHooks {
  static std::unique_ptr<torch::autograd::SavedVariableHooks> make() {
    return innermost == nullptr ? nullptr : innermost->hooks_();
  }
};

namespace {

/// Leaves backward passes to libtorch's engine, whose threads of devices exist once in a process.
class AskingEngine final : public torch::autograd::Engine {
 public:
  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs, bool keep_graph,
                                         bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    return get_base_engine().execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }
  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<torch::autograd::GraphTask>& graph_task, NodePtr graph_root,
      torch::autograd::InputBuffer&& input_buffer) override {
    return get_base_engine().execute_with_graph_task(graph_task, std::move(graph_root),
                                                     std::move(input_buffer));
  }
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return SavedTensorHooks::make();
  }
};

torch::autograd::Engine& asking_engine() {
  static AskingEngine engine;
  return engine;
}

void install_engine() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const torch::autograd::Engine& engine = torch::autograd::Engine::get_default_engine();
  if (typeid(engine) == typeid(AskingEngine)) return;
  if (typeid(engine) != typeid(torch::autograd::Engine)) {
    fail(
        ErrorKind::kUsage,
        "hooks of saved tensors: expected a process with libtorch's own engine of autograd; found another one, "
        "such as Python's, which has its own hooks; set activation_checkpointing.mode to \"full\" or "
        "\"selective\"");
  }
  torch::autograd::set_default_engine_stub(&asking_engine);
}

}  // namespace

SavedTensorScope::SavedTensorScope(Hooks hooks)
    : hooks_(std::move(hooks)), outer_(std::exchange(innermost, this)) {
  try {
    install_engine();
  } catch (...) {
    innermost = outer_;
    throw;
  }
}

SavedTensorScope::~SavedTensorScope() { innermost = outer_; }

}  // namespace fsdp::util
