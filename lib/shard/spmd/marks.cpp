#include "shard/spmd/marks.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <utility>

#include "shard/spmd/mark_rules.h"
#include "shard/spmd/model_marks.h"

namespace fsdp::shard {
namespace {

using Axes = PartitionSpec::Axes;
using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

/// Thread-safe.
class Registry {
 public:
  static Registry& instance() {
    static Registry registry;
    return registry;
  }

  void set(const at::Tensor& tensor, Mark mark) {
    std::lock_guard lock(mutex_);
    if (marks_.size() >= kSmall && std::has_single_bit(marks_.size())) {  // for speed only
      std::erase_if(marks_, [](const auto& entry) { return entry.second.tensor.expired(); });
    }
    marks_.insert_or_assign(tensor.unsafeGetTensorImpl(),
                            MarkedTensor{WeakTensor(tensor.getIntrusivePtr()), std::move(mark)});
  }

  std::optional<Mark> get(const at::Tensor& tensor) {
    std::lock_guard lock(mutex_);
    const auto found = marks_.find(tensor.unsafeGetTensorImpl());
    // A new tensor may have the address of a marked one that is gone.
    if (found == marks_.end() || found->second.tensor.expired()) return std::nullopt;
    return found->second.mark;
  }

  size_t size() {
    std::lock_guard lock(mutex_);
    return marks_.size();
  }

 private:
  static constexpr size_t kSmall = 256;
  struct MarkedTensor {
    WeakTensor tensor;
    Mark mark;
  };
  std::mutex mutex_;
  std::map<const void*, MarkedTensor> marks_;
};

/// The axes of more than one rank.
Axes effective(const Axes& axes, const comm::MeshShape& mesh) {
  Axes result;
  std::copy_if(axes.begin(), axes.end(), std::back_inserter(result),
               [&](comm::MeshAxis axis) { return mesh.along(axis) > 1; });
  return result;
}

Cuts cuts_of(const PartitionSpec& spec, size_t dimensions) {
  Cuts cuts(dimensions);
  for (size_t i = 0; i < dimensions; ++i) cuts[i] = spec.axes(i);
  return cuts;
}

/// An operation on marked tensors, from its start to its end.
struct FollowedCall : at::ObserverContext {
  MarkRule rule = nullptr;  ///< null if the result is undetermined whatever the cuts are
  MarkedCall call;
  comm::MeshShape mesh;
  std::string cause;  ///< operation of a result without a mark

  void add(const at::Tensor& tensor);
  /// Parameters are whole while they are used, except for the layers that ranks share.
  void add_cuts_of_parameter(MarkedOperand& operand, const Sharding& sharding);
  /// Axes that cut alike are written alike, as the first of them.
  void write_alike(Cuts& cuts);
  void mark(const at::Tensor& result, size_t index) const;

  bool is_marked = false;
  std::vector<Axes> written;
};

void FollowedCall::write_alike(Cuts& cuts) {
  for (Axes& axes : cuts) {
    if (axes.empty()) continue;
    const auto same = std::find_if(written.begin(), written.end(), [&](const Axes& each) {
      return effective(each, mesh) == effective(axes, mesh);
    });
    if (same == written.end()) {
      written.push_back(axes);
    } else {
      axes = *same;
    }
  }
}

void FollowedCall::add_cuts_of_parameter(MarkedOperand& operand, const Sharding& sharding) {
  if (operand.sizes == sharding.global_shape) return;
  operand.cuts = cuts_of(only_model(sharding.spec), operand.sizes.size());
  if (!is_marked) mesh = sharding.mesh;
  write_alike(operand.cuts);
}

void FollowedCall::add(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  MarkedOperand& operand =
      call.operands.emplace_back(MarkedOperand{tensor.sizes().vec(), Cuts(tensor.sizes().size())});
  const auto mark = mark_of(tensor);
  if (!mark) return;
  const auto* sharding = std::get_if<Sharding>(&*mark);
  if (tensor.is_leaf() && tensor.requires_grad()) {
    if (sharding != nullptr) add_cuts_of_parameter(operand, *sharding);
    return;
  }
  if (sharding == nullptr || (is_marked && sharding->mesh != mesh)) {
    rule = nullptr;
    const auto* undetermined = std::get_if<UndeterminedMark>(&*mark);
    cause = undetermined != nullptr ? undetermined->cause : cause + " of a tensor without a stated spec";
  } else {
    mesh = sharding->mesh;
    operand.cuts = cuts_of(sharding->spec, tensor.sizes().size());
    write_alike(operand.cuts);
    if (!is_marked) cause += " of a tensor sharded as " + to_string(sharding->spec);
  }
  is_marked = true;
}

void FollowedCall::mark(const at::Tensor& result, size_t index) const {
  const auto cuts = rule == nullptr ? std::nullopt : rule(call, result.sizes(), index);
  if (!cuts) {
    // Operations inside this one, or an earlier mark of the tensor, know more.
    if (rule != nullptr || !mark_of(result)) mark_activation(result, UndeterminedMark{cause});
    return;
  }
  auto shape = result.sizes().vec();
  for (size_t i = 0; i < shape.size(); ++i) shape[i] *= mesh.along((*cuts)[i]);
  mark_activation(result, Sharding{mesh, PartitionSpec(*cuts), std::move(shape)});
}

std::unique_ptr<at::ObserverContext> operation_begins(const at::RecordFunction& function) {
  const bool in_backward = torch::autograd::get_current_graph_task_id() != -1 && !at::GradMode::is_enabled();
  if (in_backward) return nullptr;
  auto followed = std::make_unique<FollowedCall>();
  followed->cause = function.name();
  const std::string_view name = followed->cause;
  followed->rule = mark_rule(name.substr(name.rfind(':') + 1));
  for (const c10::IValue& argument : function.inputs()) {
    const bool is_list = argument.isTensorList();
    if (argument.isTensor()) followed->add(argument.toTensor());
    if (is_list) {
      for (const at::Tensor& tensor : argument.toTensorList()) followed->add(tensor);
    }
    followed->call.arguments.push_back(argument.isTensor() || is_list ? c10::IValue() : argument);
  }
  if (!followed->is_marked) return nullptr;
  return followed;
}

void operation_ends(const at::RecordFunction& function, at::ObserverContext* context) {
  if (context == nullptr) return;
  const auto& followed = *static_cast<FollowedCall*>(context);
  size_t index = 0;
  for (const c10::IValue& output : function.outputs()) {
    if (output.isTensor() && output.toTensor().defined()) followed.mark(output.toTensor(), index);
    if (output.isTensorList()) {
      for (const at::Tensor& tensor : output.toTensorList()) followed.mark(tensor, index);
    }
    ++index;
  }
}

void follow_on_this_thread() {
  thread_local bool follows = false;
  if (std::exchange(follows, true)) return;
  at::addThreadLocalCallback(at::RecordFunctionCallback(operation_begins, operation_ends)
                                 .needsInputs(true)
                                 .needsOutputs(true)
                                 .scopes({at::RecordScope::FUNCTION}));
}

thread_local int sharded_modules = 0;

}  // namespace

std::optional<Mark> mark_of(const at::Tensor& tensor) { return Registry::instance().get(tensor); }

size_t kept_marks() { return Registry::instance().size(); }

void mark_parameter(const at::Tensor& parameter, Sharding sharding) {
  Registry::instance().set(parameter, std::move(sharding));
}

void mark_activation(const at::Tensor& activation, Mark mark) {
  follow_on_this_thread();
  Registry::instance().set(activation, std::move(mark));
}

bool cut_alike(const PartitionSpec& a, const PartitionSpec& b, const comm::MeshShape& mesh) {
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    if (effective(a.axes(i), mesh) != effective(b.axes(i), mesh)) return false;
  }
  return true;
}

InsideShardedModule::InsideShardedModule() { ++sharded_modules; }
InsideShardedModule::~InsideShardedModule() { --sharded_modules; }
bool InsideShardedModule::is_open() { return sharded_modules > 0; }

}  // namespace fsdp::shard
