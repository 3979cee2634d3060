#include "shard/sharding_marks.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <map>
#include <mutex>

#include "util/error.h"

namespace fsdp::shard {
namespace {

using util::ErrorKind;
using util::fail;
using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

/// Marks of tensors that are alive. Thread-safe.
class Marks {
 public:
  static Marks& instance() {
    static Marks marks;
    return marks;
  }

  void set(const at::Tensor& tensor, Sharding sharding) {
    std::lock_guard lock(mutex_);
    if (marks_.size() >= next_sweep_) {
      std::erase_if(marks_, [](const auto& entry) { return entry.second.tensor.expired(); });
      next_sweep_ = 2 * marks_.size() + kSmall;
    }
    marks_.insert_or_assign(tensor.unsafeGetTensorImpl(),
                            Entry{WeakTensor(tensor.getIntrusivePtr()), std::move(sharding)});
  }

  std::optional<Sharding> get(const at::Tensor& tensor) {
    std::lock_guard lock(mutex_);
    auto found = marks_.find(tensor.unsafeGetTensorImpl());
    // Another tensor may have come to lie where a marked one was.
    if (found == marks_.end() || found->second.tensor.expired()) return std::nullopt;
    return found->second.sharding;
  }

 private:
  static constexpr size_t kSmall = 256;
  struct Entry {
    WeakTensor tensor;
    Sharding sharding;
  };
  std::mutex mutex_;
  std::map<const void*, Entry> marks_;
  size_t next_sweep_ = kSmall;
};

/// The parts of all ranks of a group, one after another on a dimension. Collective.
at::Tensor gather_dimension(const at::Tensor& part, int64_t dimension, comm::Communicator& group) {
  if (group.world_size() == 1) return part;
  at::Tensor first = part.movedim(dimension, 0).contiguous();
  auto shape = first.sizes().vec();
  shape[0] *= group.world_size();
  at::Tensor all = at::empty({first.numel() * group.world_size()}, first.options());
  group.all_gather(all, first.view({-1}), {.unit = "activation"})->wait();
  return all.view(shape).movedim(0, dimension);
}

/// One dimension of a replicated activation, cut over a group.
class CutDimension : public torch::autograd::Function<CutDimension> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& whole,
                            int64_t dimension, DimensionPart part,
                            const std::shared_ptr<comm::Communicator>& group) {
    context->saved_data["dimension"] = dimension;
    context->saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<Group>(group));
    return whole.narrow(dimension, part.begin, part.length).clone();
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    auto capsule = context->saved_data["group"].toCapsule();
    comm::Communicator& group = *static_cast<Group&>(*capsule).communicator;
    int64_t dimension = context->saved_data["dimension"].toInt();
    at::Tensor whole = gather_dimension(gradients[0], dimension, group).div(group.world_size());
    return {whole, at::Tensor(), at::Tensor(), at::Tensor()};
  }

 private:
  struct Group : torch::CustomClassHolder {
    explicit Group(std::shared_ptr<comm::Communicator> group) : communicator(std::move(group)) {}
    std::shared_ptr<comm::Communicator> communicator;
  };
};

at::Tensor cut(const at::Tensor& whole, const comm::Mesh& mesh, const PartitionSpec& spec) {
  at::Tensor part = whole;
  const auto shape = whole.sizes().vec();
  for (size_t dimension : spec.cut_dimensions()) {
    const auto& axes = spec.axes(dimension);
    DimensionPart place =
        even_part("mark_sharding()", shape, dimension, axes, mesh.shape(), mesh.coordinate());
    if (mesh.shape().along(axes) == 1) continue;
    part = CutDimension::apply(part, static_cast<int64_t>(dimension), place, mesh.group(axes));
  }
  // A mark of its own, also where nothing was cut.
  return part.is_same(whole) ? whole.view_as(whole) : part;
}

}  // namespace

at::Tensor mark_parameter(const at::Tensor& parameter, const comm::Mesh& mesh, const PartitionSpec& spec) {
  check_spec("mark_sharding()", spec, parameter.sizes().vec());
  Marks::instance().set(parameter, {mesh.shape(), spec, parameter.sizes().vec()});
  return parameter;
}

at::Tensor mark_sharding(const at::Tensor& tensor, const comm::Mesh& mesh, const PartitionSpec& spec) {
  if (tensor.is_leaf() && tensor.requires_grad()) return mark_parameter(tensor, mesh, spec);
  check_spec("mark_sharding()", spec, tensor.sizes().vec());
  if (auto sharding = sharding_of(tensor)) {
    if (sharding->spec == spec && sharding->mesh == mesh.shape()) return tensor;
    fail(ErrorKind::kUsage, "mark_sharding(): expected an activation that is replicated, or sharded as ",
         to_string(spec), "; found one that is sharded as ", to_string(sharding->spec),
         "; take full_tensor() of it first");
  }
  at::Tensor part = cut(tensor, mesh, spec);
  Marks::instance().set(part, {mesh.shape(), spec, tensor.sizes().vec()});
  return part;
}

at::Tensor mark_local_shard(const at::Tensor& local, const comm::Mesh& mesh, const PartitionSpec& spec) {
  auto shape = local.sizes().vec();
  check_spec("mark_local_shard()", spec, shape);
  for (size_t dimension : spec.cut_dimensions()) shape[dimension] *= mesh.shape().along(spec.axes(dimension));
  Marks::instance().set(local, {mesh.shape(), spec, std::move(shape)});
  return local;
}

std::optional<Sharding> sharding_of(const at::Tensor& tensor) { return Marks::instance().get(tensor); }

at::Tensor full_tensor(const at::Tensor& tensor, const comm::Mesh& mesh) {
  auto sharding = sharding_of(tensor);
  if (!sharding || tensor.sizes() == at::IntArrayRef(sharding->global_shape)) return tensor;
  at::NoGradGuard no_grad;
  at::Tensor whole = tensor.detach();
  auto dimensions = sharding->spec.cut_dimensions();
  for (auto dimension = dimensions.rbegin(); dimension != dimensions.rend(); ++dimension) {
    whole = gather_dimension(whole, static_cast<int64_t>(*dimension),
                             *mesh.group(sharding->spec.axes(*dimension)));
  }
  return whole.contiguous();
}

}  // namespace fsdp::shard
