#include "shard/state/matrix_exchange.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>

#include "base/util/error.h"
#include "shard/engine/layout_views.h"

namespace fsdp::shard {
namespace {

double cost(const std::vector<int64_t>& shape) {
  const auto rows = static_cast<double>(shape.at(0)), columns = static_cast<double>(shape.at(1));
  return rows * columns * std::min(rows, columns);
}

/// This rank's group along the axis model, a group of one without parts of layers, among the groups that
/// share the work on a unit.
ShardPlace sharing(const Unit& unit) {
  const ProcessGroups& groups = unit.groups();
  if (unit.has_parts()) return groups.place();
  const int holders = unit.options().holders;  // neighbours
  return {.rank = groups.replica_rank() / holders, .world_size = groups.replicas() / holders};
}

}  // namespace

std::vector<int> share_matrices(const std::vector<std::vector<int64_t>>& shapes, int ranks) {
  std::vector<size_t> order(shapes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return cost(shapes[a]) > cost(shapes[b]); });
  std::vector<double> load(static_cast<size_t>(ranks));
  std::vector<int> owners(shapes.size());
  for (size_t i : order) {
    auto least = std::min_element(load.begin(), load.end());
    owners[i] = static_cast<int>(least - load.begin());
    *least += cost(shapes[i]);
  }
  return owners;
}

MatrixExchange::MatrixExchange(const Engine& engine, const std::function<bool(const Segment&)>& is_matrix)
    : engine_(engine), parts_(engine.model_group()) {
  const auto parameters = engine.segments_by_parameter();
  for (size_t u = 0; u < engine.units().size(); ++u) {
    const Unit& unit = *engine.units()[u];
    std::vector<Owned> owned;
    std::vector<std::vector<int64_t>> shapes;
    for (const auto& segments : parameters) {
      const Segment& segment = segments.front();
      if (segment.unit != u || !is_matrix(segment)) continue;
      const ParameterPlace& place = unit.storage().layout().parameters().at(segment.parameter);
      FSDP_CHECK(place.shape.size() == 2, segment.name, " is no matrix of ", unit.name());
      owned.push_back({.parameter = segment.parameter});
      shapes.push_back(segment.shape);
    }
    const std::vector<int> ranks = share_matrices(shapes, sharing(unit).world_size * parts_.count());
    for (size_t i = 0; i < owned.size(); ++i) {
      owned[i].rank = ranks[i] / parts_.count();
      owned[i].model_rank = ranks[i] % parts_.count();
    }
    owners_.push_back(std::move(owned));
  }
}

void MatrixExchange::map_whole(const NamedParameter& parameter, int model_rank, const at::Tensor& part,
                               const Function& function) const {
  const bool are_several = ModelParts::are_several(parameter);
  const at::Tensor whole = parts_.joined(parameter, part);
  if (!are_several || parts_.rank() == model_rank) {
    at::Tensor image = function(whole);
    FSDP_CHECK(image.sizes() == whole.sizes(), parameter.name, ": a matrix changed its shape");
    whole.copy_(image);
  }
  if (are_several) parts_.distribute(parameter, whole, model_rank, part);
}

void MatrixExchange::map(size_t index, const at::Tensor& flat, const Function& function) const {
  const Unit& unit = *engine_.units().at(index);
  const UnitLayout& layout = unit.storage().layout();
  const ShardPlace place = sharing(unit);
  FSDP_CHECK(flat.dim() == 1 && flat.numel() == layout.shard_numel() && flat.is_contiguous(), unit.name(),
             ": not shaped like its shard");
  if (!has_matrices(index)) return;
  at::NoGradGuard no_grad;
  const comm::CallSite site{.unit = unit.name(), .pass = "optimizer"};
  at::Tensor gathered = flat;
  if (unit.has_parts()) {
    gathered = at::empty({layout.gathered_numel()}, flat.options());
    gathered.narrow(0, place.rank * flat.numel(), flat.numel()).copy_(flat);
    unit.groups().gather(gathered, site);
  }
  // Of holders that are replicas, one counts.
  const bool counts = unit.has_parts() || unit.groups().replica_rank() % unit.options().holders == 0;
  for (const Owned& owned : owners_[index]) {
    // A separate tensor, so that the result does not depend on the matrix's address.
    const bool mine = owned.rank == place.rank;
    at::Tensor matrix = at::empty(layout.parameters()[owned.parameter].shape, flat.options());
    std::vector<LayoutPiece> pieces = pieces_of(layout, owned.parameter, matrix, gathered);
    if (mine) {
      for (const LayoutPiece& piece : pieces) piece.whole.copy_(piece.gathered);
      map_whole(unit.storage().parameters()[owned.parameter], owned.model_rank, matrix, function);
    }
    const bool gives = mine && counts;
    for (const LayoutPiece& piece : pieces)
      gives ? piece.gathered.copy_(piece.whole) : piece.gathered.zero_();
  }
  if (unit.has_parts()) {
    unit.groups().reduce(flat, gathered, site);
  } else if (place.world_size > 1) {
    unit.groups().replicate->all_reduce(flat, comm::ReduceOp::kSum, site)->wait();
  }
}

}  // namespace fsdp::shard
