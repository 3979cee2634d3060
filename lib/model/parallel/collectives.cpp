#include "model/parallel/collectives.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <functional>
#include <utility>

#include "base/util/error.h"

namespace fsdp::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Operation = std::function<at::Tensor(const at::Tensor&)>;

/// Returns the call site. Recomputation in backward is part of the backward, as in the traces of FSDP units.
comm::CallSite site(const Ranks& ranks) {
  const bool in_backward = torch::autograd::get_current_graph_task_id() >= 0;
  return {.unit = kLayerSite + ranks.layer, .pass = in_backward ? "backward" : "forward"};
}

/// Runs one operation in forward and another on the gradient.
class TwoWays final : public torch::autograd::Function<TwoWays> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const Operation& there,
                            const Operation& back) {
    context->saved_data["back"] = c10::IValue::make_capsule(c10::make_intrusive<Held>(back));
    return there(x);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto held = context->saved_data["back"].toCapsule();
    return {static_cast<Held&>(*held).operation(gradients[0]), {}, {}};
  }

 private:
  struct Held : torch::CustomClassHolder {
    explicit Held(Operation given) : operation(std::move(given)) {}
    Operation operation;
  };
};

int64_t part_size(const at::Tensor& x, int64_t dimension, const Ranks& ranks) {
  const int64_t size = x.size(dimension), count = ranks.count();
  if (size % count != 0) {
    fail(ErrorKind::kUsage, ranks.layer, ": expected dimension ", dimension, " of ", x.sizes(),
         " to divide over ", count, " ranks; found ", size, " = ", size / count, " x ", count, " + ",
         size % count, "; pad it to ", (size / count + 1) * count, " or change the number of ranks");
  }
  return size / count;
}

at::Tensor nothing(const at::Tensor& x) { return x; }

at::Tensor summed(const at::Tensor& x, const Ranks& ranks) {
  at::Tensor sum = x.clone(at::MemoryFormat::Contiguous);
  ranks.group->all_reduce(sum, comm::ReduceOp::kSum, site(ranks))->wait();
  return sum;
}

at::Tensor concatenated(const at::Tensor& part, int64_t dimension, const Ranks& ranks) {
  return gathered(part, ranks).movedim(0, dimension).flatten(dimension, dimension + 1);
}

at::Tensor part_of_sum(const at::Tensor& x, int64_t dimension, const Ranks& ranks) {
  const int64_t size = part_size(x, dimension, ranks);
  const at::Tensor parts = x.unflatten(dimension, {ranks.count(), size}).movedim(dimension, 0).contiguous();
  at::Tensor sum = at::empty(parts.sizes().slice(1), parts.options());
  ranks.group->reduce_scatter(sum.view({-1}), parts.view({-1}), site(ranks))->wait();
  return sum;
}

at::Tensor own_part(const at::Tensor& x, int64_t dimension, const Ranks& ranks) {
  const int64_t size = part_size(x, dimension, ranks);
  return x.narrow(dimension, ranks.rank() * size, size).contiguous();
}

at::Tensor two_ways(const at::Tensor& x, const Ranks& ranks, const Operation& there, const Operation& back) {
  return ranks.count() == 1 ? x : TwoWays::apply(x, there, back);
}

using OnDimension = at::Tensor (*)(const at::Tensor&, int64_t, const Ranks&);
Operation on(int64_t dimension, const Ranks& ranks, OnDimension operation) {
  return [=](const at::Tensor& x) { return operation(x, dimension, ranks); };
}
at::Tensor two_ways(const at::Tensor& x, int64_t given, const Ranks& ranks, OnDimension there,
                    OnDimension back) {
  const int64_t dimension = at::maybe_wrap_dim(given, x.dim());
  return two_ways(x, ranks, on(dimension, ranks, there), on(dimension, ranks, back));
}

const Shard* cut_of(const Layout& layout) { return std::get_if<Shard>(&layout); }

}  // namespace

at::Tensor gathered(const at::Tensor& given, const Ranks& ranks) {
  const at::Tensor mine = given.contiguous();
  std::vector<int64_t> shape = mine.sizes().vec();
  shape.insert(shape.begin(), ranks.count());
  at::Tensor all = at::empty(shape, mine.options());
  ranks.group->all_gather(all.view({-1}), mine.view({-1}), site(ranks))->wait();
  return all;
}

at::Tensor copy_to_ranks(const at::Tensor& x, const Ranks& ranks) {
  return two_ways(x, ranks, nothing, [ranks](const at::Tensor& gradient) { return summed(gradient, ranks); });
}

at::Tensor reduce_from_ranks(const at::Tensor& x, const Ranks& ranks) {
  return two_ways(
      x, ranks, [&ranks](const at::Tensor& part) { return summed(part, ranks); }, nothing);
}

at::Tensor gather(const at::Tensor& part, int64_t dimension, const Ranks& ranks) {
  return two_ways(part, dimension, ranks, concatenated, part_of_sum);
}

at::Tensor gather_alike(const at::Tensor& part, int64_t dimension, const Ranks& ranks) {
  return two_ways(part, dimension, ranks, concatenated, own_part);
}

at::Tensor reduce_scatter(const at::Tensor& x, int64_t dimension, const Ranks& ranks) {
  return two_ways(x, dimension, ranks, part_of_sum, concatenated);
}

at::Tensor split(const at::Tensor& x, int64_t dimension, const Ranks& ranks) {
  return two_ways(x, dimension, ranks, own_part, concatenated);
}

std::string to_string(const Layout& layout) {
  const Shard* cut = cut_of(layout);
  return cut == nullptr ? "Replicate" : concat("Shard(", cut->dim, ")");
}

at::Tensor enter_region(const at::Tensor& x, const Layout& from, const Ranks& ranks) {
  const Shard* cut = cut_of(from);
  return cut == nullptr ? copy_to_ranks(x, ranks) : gather(x, cut->dim, ranks);
}

at::Tensor leave_region(const at::Tensor& x, const Layout& to, const Ranks& ranks) {
  const Shard* cut = cut_of(to);
  return cut == nullptr ? reduce_from_ranks(x, ranks) : reduce_scatter(x, cut->dim, ranks);
}

at::Tensor redistribute(const at::Tensor& x, const Layout& from, const Layout& to, const Ranks& ranks) {
  if (from == to) return x;
  const Shard *before = cut_of(from), *after = cut_of(to);
  if (before != nullptr && after != nullptr) {
    fail(ErrorKind::kUsage, ranks.layer, ": expected a change between Replicate and a cut; found one from ",
         to_string(from), " to ", to_string(to), "; go through Replicate");
  }
  return before != nullptr ? gather_alike(x, before->dim, ranks) : split(x, after->dim, ranks);
}

}  // namespace fsdp::parallel
