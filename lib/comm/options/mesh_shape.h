#pragma once

// MeshShape: the ranks of a run on the named axes dcn, data, context and model. Needs no communicator, so
// that a config can be checked, and any world planned, without processes.
//
// Ranks are numbered row by row, with the axes that communicate most innermost:
//
//   rank = ((dcn * DATA + data) * CONTEXT + context) * MODEL + model
//
//   dcn 2 x data 3 x context 1 x model 1       data 0   1   2
//                                      dcn 0        0   1   2
//                                      dcn 1        3   4   5
//
// The rows of a batch are distributed over dcn x data. The ranks of a context group have parts of the same
// rows (model/parallel/cut_sequence.h), those of a model group compute the same tokens with parts of the
// layers (model/nn/parallelize.h). The names are those of the SPMD notes of PyTorch/XLA, where dcn is the
// data-center network between slices.
//
// The names are those of the SPMD notes of PyTorch/XLA, where dcn is the data-center network between slices.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/util/error.h"
#include "comm/options/options.h"

namespace fsdp::comm {

/// Replicas over the slow network, shards, parts of sequences, and parts of layers.
enum class MeshAxis { kDcn, kData, kContext, kModel };

inline constexpr std::array<MeshAxis, 4> kMeshAxes = {MeshAxis::kDcn, MeshAxis::kData, MeshAxis::kContext,
                                                      MeshAxis::kModel};

/// "dcn", "data", "context" or "model".
inline const char* name_of(MeshAxis axis) {
  constexpr std::array<const char*, 4> kNames = {"dcn", "data", "context", "model"};
  return kNames[static_cast<size_t>(axis)];
}

/// A rank's place on each axis.
struct MeshCoordinate {
  int dcn = 0, data = 0, context = 0, model = 0;

  int& on(MeshAxis axis) {
    int* const places[] = {&dcn, &data, &context, &model};
    return *places[static_cast<size_t>(axis)];
  }
  int on(MeshAxis axis) const { return MeshCoordinate(*this).on(axis); }
  bool operator==(const MeshCoordinate&) const = default;
};

/// The number of ranks along each axis, at least 1.
struct MeshShape {
  int dcn = 1, data = 1, context = 1, model = 1;
  int ranks_of_host = 0;  ///< as in MeshOptions

  int along(MeshAxis axis) const {
    const int sizes[] = {dcn, data, context, model};
    return sizes[static_cast<size_t>(axis)];
  }
  /// The size of a group over these axes.
  int along(const std::vector<MeshAxis>& axes) const {
    int ranks = 1;
    for (MeshAxis axis : axes) ranks *= along(axis);
    return ranks;
  }
  int world_size() const { return dcn * data * context * model; }
  /// Number of ranks over which the rows of a batch are distributed.
  int row_ranks() const { return dcn * data; }

  MeshCoordinate coordinate_of(int rank) const {
    FSDP_CHECK(rank >= 0 && rank < world_size(), "rank ", rank, " in a mesh of ", world_size());
    return {.dcn = rank / (data * context * model),
            .data = rank / (context * model) % data,
            .context = rank / model % context,
            .model = rank % model};
  }

  /// The ranks that differ from `rank` at most on these axes, including `rank`, ascending.
  std::vector<int> group_of(int rank, const std::vector<MeshAxis>& axes) const {
    MeshCoordinate own = coordinate_of(rank);
    std::vector<int> ranks;
    for (int other = 0; other < world_size(); ++other) {
      MeshCoordinate place = coordinate_of(other);
      for (MeshAxis axis : axes) place.on(axis) = own.on(axis);
      if (place == own) ranks.push_back(other);
    }
    return ranks;
  }

  /// Whether some group over these axes has ranks on several hosts.
  bool crosses_hosts(const std::vector<MeshAxis>& axes) const {
    if (ranks_of_host == 0 || along(axes) == 1) return false;
    for (int rank = 0; rank < world_size(); ++rank) {
      MeshCoordinate first = coordinate_of(rank);
      for (MeshAxis axis : axes) first.on(axis) = 0;
      const int lowest = ((first.dcn * data + first.data) * context + first.context) * model + first.model;
      if (rank / ranks_of_host != lowest / ranks_of_host) return true;
    }
    return false;
  }

  bool operator==(const MeshShape&) const = default;
};

/// "dcn 2 x data 3 x context 1 x model 1".
inline std::string to_string(const MeshShape& shape) {
  std::string text;
  for (MeshAxis axis : kMeshAxes) {
    text += concat(text.empty() ? "" : " x ", name_of(axis), " ", shape.along(axis));
  }
  return text;
}

namespace detail {

inline constexpr int64_t kRest = -1;

/// "mesh.dcn 2 x mesh.data the rest (-1) x mesh.context 1 x mesh.model 1", with "= 2" where every axis has a
/// size.
inline std::string shown(const std::array<int64_t, 4>& sizes) {
  std::string text;
  bool sized = true;
  int64_t product = 1;
  for (MeshAxis axis : kMeshAxes) {
    int64_t size = sizes[static_cast<size_t>(axis)];
    sized = sized && size >= 1 && !__builtin_mul_overflow(product, size, &product);
    text += concat(text.empty() ? "" : " x ", "mesh.", name_of(axis), " ",
                   size == kRest ? std::string("the rest (-1)") : std::to_string(size));
  }
  return sized ? concat(text, " = ", product) : text;
}

inline std::string processes(int64_t count) { return concat(count, count == 1 ? " process" : " processes"); }

}  // namespace detail

/// The shape of a mesh of `world_size` ranks. The product of the axes must be the world size; at most one
/// axis may be -1, the rest. Throws Error(kUsage) with the arithmetic.
inline MeshShape resolve_mesh(const MeshOptions& options, int world_size) {
  FSDP_CHECK(world_size >= 1, "a world of ", world_size, " processes");
  std::array<int64_t, 4> sizes = {options.dcn, options.data, options.context, options.model};
  const std::string found = detail::shown(sizes);
  const std::string world = detail::processes(world_size);
  const auto refuse = [](const auto&... parts) { util::fail(ErrorKind::kUsage, parts...); };

  int64_t* rest = nullptr;
  int64_t product = 1;  // of the axes that have a size
  for (int64_t& size : sizes) {
    if (size == detail::kRest) {
      if (rest != nullptr) {
        refuse("[mesh]: expected -1 (the rest) at most once; found ", found,
               "; give all axes but one a size");
      }
      rest = &size;
    } else if (size < 1) {
      refuse("[mesh]: expected sizes of at least 1, or -1 (the rest) once; found ", found,
             "; set mesh.data = -1 and the others to 1 for the default");
    } else if (__builtin_mul_overflow(product, size, &product)) {
      refuse("[mesh]: expected a mesh of ", world, "; found ", found,
             ", which is more than can be counted; set one axis to -1 (the rest)");
    }
  }
  if (rest != nullptr) {
    if (world_size % product != 0) {
      refuse("[mesh]: the number of processes must be a multiple of ", product, " for ", found,
             ", but the run has ", world, ": ", world_size, " = ", world_size / product, " x ", product,
             " + ", world_size % product, "; start a multiple of ", product, " processes or change an axis");
    }
    *rest = world_size / product;
  } else if (product != world_size) {
    refuse("[mesh]: the number of processes must be the product of the axes, ", found, ", but the run has ",
           world, "; set one axis to -1 (the rest) or start ", detail::processes(product));
  }
  return {static_cast<int>(sizes[0]), static_cast<int>(sizes[1]), static_cast<int>(sizes[2]),
          static_cast<int>(sizes[3]), static_cast<int>(options.ranks_of_host)};
}

}  // namespace fsdp::comm
