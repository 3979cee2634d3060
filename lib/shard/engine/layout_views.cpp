#include "shard/engine/layout_views.h"

#include <c10/util/strides.h>

#include "base/tensor/rectangle_view.h"
#include "base/util/error.h"
#include "model/kernels/below_autograd.h"

namespace fsdp::shard {
namespace {

at::Tensor strided_view(const at::Tensor& tensor, const std::vector<int64_t>& shape,
                        const PiecePlace::View& view) {
  return tensor.as_strided(shape, view.strides, tensor.storage_offset() + view.offset);
}

}  // namespace

std::vector<LayoutPiece> pieces_of(const UnitLayout& layout, size_t parameter, const at::Tensor& whole,
                                   const at::Tensor& gathered) {
  FSDP_CHECK(whole.is_contiguous() && gathered.is_contiguous());
  FSDP_CHECK(whole.numel() == layout.parameters().at(parameter).numel &&
             gathered.numel() == layout.gathered_numel());
  std::vector<LayoutPiece> pieces;
  for (const PiecePlace& place : layout.pieces(parameter)) {
    pieces.push_back(
        {strided_view(whole, place.shape, place.whole), strided_view(gathered, place.shape, place.gathered)});
  }
  return pieces;
}

at::Tensor whole_view(const UnitLayout& layout, size_t parameter, const at::Tensor& unsharded) {
  const ParameterPlace& place = layout.parameters().at(parameter);
  return kernels::strided_view(unsharded, place.shape, c10::contiguous_strides(place.shape), place.offset);
}

LayoutPiece local_piece(const UnitLayout& layout, size_t parameter, int rank, const at::Tensor& whole,
                        const at::Tensor& shard) {
  const auto [columns, offset] = layout.local_range(parameter, rank);
  FSDP_CHECK(whole.numel() == layout.parameters().at(parameter).numel);
  return {util::rectangle_view(whole, columns),
          shard.narrow(0, offset, columns.numel()).view({columns.height(), columns.length()})};
}

}  // namespace fsdp::shard
