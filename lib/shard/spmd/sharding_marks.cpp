#include "shard/spmd/sharding_marks.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <set>

#include "base/util/error.h"
#include "shard/engine/inner_modules.h"
#include "shard/spmd/marks.h"
#include "shard/spmd/model_marks.h"

namespace fsdp::shard {
namespace {

std::string joined(const PartitionSpec::Axes& axes) {
  std::string text;
  for (comm::MeshAxis axis : axes) text += concat(text.empty() ? "" : " x ", comm::name_of(axis));
  return text;
}

/// "dcn 2 x data 3 = 6".
std::string product_text(const PartitionSpec::Axes& axes, const comm::MeshShape& mesh) {
  std::string text;
  for (comm::MeshAxis axis : axes) {
    text += concat(text.empty() ? "" : " x ", comm::name_of(axis), " ", mesh.along(axis));
  }
  return axes.size() == 1 ? text : concat(text, " = ", mesh.along(axes));
}

/// Throws Error(kUsage), which begins with `what`, unless the spec fits a tensor of this shape: no more
/// dimensions than the tensor has, each axis once, the axes of a dimension in the order of the mesh.
void check_spec(const char* what, const PartitionSpec& spec, const std::vector<int64_t>& shape) {
  if (spec.size() > shape.size()) {
    fail(ErrorKind::kUsage, what, ": expected a partition spec of at most ", shape.size(),
         " dimensions for a tensor of shape ", at::IntArrayRef(shape), "; found ", to_string(spec), " of ",
         spec.size(), "; leave out the rest");
  }
  std::set<comm::MeshAxis> seen;
  for (size_t dimension = 0; dimension < spec.size(); ++dimension) {
    const auto& axes = spec.axes(dimension);
    for (size_t i = 0; i < axes.size(); ++i) {
      if (!seen.insert(axes[i]).second) {
        fail(ErrorKind::kUsage, what, ": expected each mesh axis once in a partition spec; found ",
             comm::name_of(axes[i]), " twice in ", to_string(spec), "; cut one dimension with it");
      }
      if (i > 0 && axes[i] < axes[i - 1]) {
        fail(ErrorKind::kUsage, what,
             ": expected the axes of a dimension in the order dcn, data, context, model; found ",
             to_string(spec), "; reorder them");
      }
    }
  }
}

/// The part of a dimension that lies on one rank.
struct DimensionPart {
  int64_t begin = 0, length = 0;
};

/// This rank's part of a dimension of `shape` that is cut over `axes`. Errors begin with `what`.
DimensionPart even_part(const char* what, at::IntArrayRef shape, size_t dimension,
                        const PartitionSpec::Axes& axes, const comm::Mesh& mesh) {
  const int64_t parts = mesh.shape().along(axes), size = shape[dimension];
  if (size % parts != 0) {
    fail(ErrorKind::kUsage, what, ": expected dimension ", dimension, " of ", shape, " to divide over ",
         product_text(axes, mesh.shape()), " ranks; found ", size, " = ", size / parts, " x ", parts, " + ",
         size % parts, "; pad it to ", (size / parts + 1) * parts, " or change the mesh");
  }
  int64_t index = 0;
  for (comm::MeshAxis axis : axes) index = index * mesh.shape().along(axis) + mesh.coordinate().on(axis);
  return {.begin = index * (size / parts), .length = size / parts};
}

/// The parts of all ranks of a group, concatenated on a dimension. Collective.
at::Tensor gather_dimension(const at::Tensor& part, int64_t dimension, comm::Communicator& group) {
  if (group.world_size() == 1) return part;
  at::Tensor first = part.movedim(dimension, 0).contiguous();
  auto shape = first.sizes().vec();
  shape[0] *= group.world_size();
  at::Tensor all = at::empty({first.numel() * group.world_size()}, first.options());
  group.all_gather(all, first.view({-1}), {.unit = "activation"})->wait();
  return all.view(shape).movedim(0, dimension);
}

/// Cuts one dimension of an activation over a group, whose ranks all have it. Of the ranks of `losses` axes,
/// whose number divides the gradient, each has a loss of its own.
class CutDimension : public torch::autograd::Function<CutDimension> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& whole,
                            int64_t dimension, DimensionPart part,
                            const std::shared_ptr<comm::Communicator>& group, int64_t losses) {
    context->saved_data["dimension"] = dimension;
    context->saved_data["losses"] = losses;
    context->saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<MarkGroup>(group));
    return whole.narrow(dimension, part.begin, part.length).clone();
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    auto capsule = context->saved_data["group"].toCapsule();
    comm::Communicator& group = *static_cast<MarkGroup&>(*capsule).communicator;
    int64_t dimension = context->saved_data["dimension"].toInt();
    const int64_t losses = context->saved_data["losses"].toInt();
    at::Tensor whole = gather_dimension(gradients[0], dimension, group).div(losses);
    return {whole, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }

 private:
  struct MarkGroup : torch::CustomClassHolder {
    explicit MarkGroup(std::shared_ptr<comm::Communicator> group) : communicator(std::move(group)) {}
    std::shared_ptr<comm::Communicator> communicator;
  };
};

/// Activations are gathered in the middle of a backward pass, as those of layers are.
const std::shared_ptr<comm::Communicator>& group_of(const comm::Mesh& mesh, const PartitionSpec::Axes& axes) {
  return cut_alike({axes}, {{comm::MeshAxis::kModel}}, mesh.shape()) ? mesh.model() : mesh.group(axes);
}

at::Tensor cut(const at::Tensor& whole, const comm::Mesh& mesh, const PartitionSpec& spec) {
  at::Tensor part = whole;
  const auto shape = whole.sizes().vec();
  for (size_t dimension : spec.cut_dimensions()) {
    const auto& axes = spec.axes(dimension);
    DimensionPart place = even_part("mark_sharding()", shape, dimension, axes, mesh);
    if (mesh.shape().along(axes) == 1) continue;
    const int64_t losses = mesh.shape().along(without_model({axes}).axes(0));
    part = CutDimension::apply(part, static_cast<int64_t>(dimension), place, group_of(mesh, axes), losses);
  }
  // A new tensor even where nothing was cut, so that it has its own mark.
  return part.is_same(whole) ? whole.view_as(whole) : part;
}

/// The sharding of a mark; nullopt if there is none. Throws Error(kUsage) for one that is not determined.
std::optional<Sharding> stated(const char* what, const std::optional<Mark>& mark) {
  if (!mark) return std::nullopt;
  if (const auto* sharding = std::get_if<Sharding>(&*mark)) return *sharding;
  const auto* undetermined = std::get_if<UndeterminedMark>(&*mark);
  fail(ErrorKind::kUsage, what, ": expected an activation whose sharding is known; found ",
       undetermined != nullptr ? "the result of " + undetermined->cause : "the output of a sharded module",
       ", which does not determine it; state it with mark_local_shard()");
}

}  // namespace

const PartitionSpec::Axes& PartitionSpec::axes(size_t dimension) const {
  static const Axes kWhole;
  return dimension < dimensions_.size() ? dimensions_[dimension] : kWhole;
}

std::vector<size_t> PartitionSpec::cut_dimensions() const {
  std::vector<size_t> cut;
  for (size_t dimension = 0; dimension < dimensions_.size(); ++dimension) {
    if (!dimensions_[dimension].empty()) cut.push_back(dimension);
  }
  return cut;
}

PartitionSpec batch_spec() { return {{comm::MeshAxis::kDcn, comm::MeshAxis::kData}}; }

std::string to_string(const PartitionSpec& spec) {
  std::string text;
  for (size_t dimension = 0; dimension < spec.size(); ++dimension) {
    const auto& axes = spec.axes(dimension);
    text += concat(dimension == 0 ? "" : ", ", axes.empty() ? "whole" : joined(axes));
  }
  return concat("(", text, ")");
}

at::Tensor local_part(const char* what, const at::Tensor& whole, const comm::Mesh& mesh,
                      const PartitionSpec& spec) {
  check_spec(what, spec, whole.sizes().vec());
  at::Tensor part = whole.view_as(whole);
  for (size_t dimension : spec.cut_dimensions()) {
    const DimensionPart place = even_part(what, whole.sizes(), dimension, spec.axes(dimension), mesh);
    part = part.narrow(static_cast<int64_t>(dimension), place.begin, place.length);
  }
  return part.contiguous();
}

at::Tensor mark_sharding(const at::Tensor& tensor, const comm::Mesh& mesh, const PartitionSpec& spec) {
  if (ShardedModules::instance().others_have({}, tensor.unsafeGetTensorImpl())) {
    fail(
        ErrorKind::kUsage,
        "mark_sharding(): expected a parameter that is not sharded yet; found one of shape ", tensor.sizes(),
        " of a sharded module, where a mark would have no effect; mark it before the module is sharded or wrapped");
  }
  check_spec("mark_sharding()", spec, tensor.sizes().vec());
  if (tensor.is_leaf() && tensor.requires_grad()) {
    mark_parameter(tensor, {mesh.shape(), spec, tensor.sizes().vec()});
    return tensor;
  }
  const auto mark = mark_of(tensor);
  if (mark && std::holds_alternative<UnstatedMark>(*mark)) return mark_local_shard(tensor, mesh, spec);
  if (const auto sharding = stated("mark_sharding()", mark)) {
    if (sharding->mesh == mesh.shape() && cut_alike(sharding->spec, spec, mesh.shape())) return tensor;
    if (sharding->mesh == mesh.shape() && cut_alike(sharding->spec, without_model(spec), mesh.shape())) {
      at::Tensor part = cut(tensor, mesh, only_model(spec));
      mark_activation(part, Sharding{mesh.shape(), spec, sharding->global_shape});
      return part;
    }
    if (!sharding->spec.cut_dimensions().empty()) {
      fail(ErrorKind::kUsage, "mark_sharding(): expected an activation that is replicated, or sharded as ",
           to_string(spec), "; found one that is sharded as ", to_string(sharding->spec),
           "; take full_tensor() of it first");
    }
  } else if (InsideShardedModule::is_open()) {
    fail(ErrorKind::kUsage,
         "mark_sharding(): expected an activation with a known mark inside a sharded module, "
         "where all of them are parts of global ones; found one of shape ",
         tensor.sizes(), " without a mark; state it first: mark_local_shard(tensor, mesh, ", to_string(spec),
         ") if it is this rank's part, mark_local_shard(tensor, mesh, {}) if every rank has all of it");
  }
  at::Tensor part = cut(tensor, mesh, spec);
  mark_activation(part, Sharding{mesh.shape(), spec, tensor.sizes().vec()});
  return part;
}

at::Tensor mark_local_shard(const at::Tensor& local, const comm::Mesh& mesh, const PartitionSpec& spec) {
  auto shape = local.sizes().vec();
  check_spec("mark_local_shard()", spec, shape);
  for (size_t dimension : spec.cut_dimensions()) shape[dimension] *= mesh.shape().along(spec.axes(dimension));
  mark_activation(local, Sharding{mesh.shape(), spec, std::move(shape)});
  return local;
}

std::optional<Sharding> sharding_of(const at::Tensor& tensor) {
  const auto mark = mark_of(tensor);
  const auto* sharding = mark ? std::get_if<Sharding>(&*mark) : nullptr;
  return sharding == nullptr ? std::nullopt : std::optional(*sharding);
}

at::Tensor full_tensor(const at::Tensor& tensor, const comm::Mesh& mesh) {
  const auto sharding = stated("full_tensor()", mark_of(tensor));
  if (!sharding || tensor.sizes() == at::IntArrayRef(sharding->global_shape)) return tensor;
  at::NoGradGuard no_grad;
  at::Tensor whole = tensor.detach();
  auto dimensions = sharding->spec.cut_dimensions();
  for (auto dimension = dimensions.rbegin(); dimension != dimensions.rend(); ++dimension) {
    whole = gather_dimension(whole, static_cast<int64_t>(*dimension),
                             *group_of(mesh, sharding->spec.axes(*dimension)));
  }
  return whole.contiguous();
}

}  // namespace fsdp::shard
