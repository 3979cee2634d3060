#pragma once

// The marks of live tensors, and their way through operations: an observer of libtorch's dispatcher sees each
// operation on the threads that have marked an activation, and gives its results the marks that follow from
// those of its operands (shard/spmd/mark_rules.h). Backward passes are not followed.

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <variant>

#include "shard/spmd/sharding_marks.h"

namespace fsdp::shard {

/// The mark of a result that no rule determines.
struct UndeterminedMark {
  std::string cause;  ///< "aten::sum of a tensor sharded as (data)"
};

/// The mark of this rank's part of an activation whose spec its owner is about to state.
struct UnstatedMark {};

using Mark = std::variant<Sharding, UndeterminedMark, UnstatedMark>;

/// Thread-safe.
std::optional<Mark> mark_of(const at::Tensor& tensor);
/// Marks a parameter, which operations see whole, because it is whole while they run.
void mark_parameter(const at::Tensor& parameter, Sharding sharding);
void mark_activation(const at::Tensor& activation, Mark mark);

/// Number of marks that are kept: those of live tensors, and some of tensors that are gone.
size_t kept_marks();

/// Returns this rank's part of a tensor that every rank has, without a mark and outside of autograd. Throws
/// Error(kUsage), which begins with `what`, for a spec that does not fit and for a dimension that does not
/// divide evenly.
at::Tensor local_part(const char* what, const at::Tensor& whole, const comm::Mesh& mesh,
                      const PartitionSpec& spec);

/// Whether two specs cut a tensor in the same way on this mesh. Axes of one rank do not count.
bool cut_alike(const PartitionSpec& a, const PartitionSpec& b, const comm::MeshShape& mesh);

/// While it lives, this thread runs a module in which every activation is this rank's part of one.
class InsideShardedModule {
 public:
  InsideShardedModule();
  ~InsideShardedModule();
  InsideShardedModule(const InsideShardedModule&) = delete;
  InsideShardedModule& operator=(const InsideShardedModule&) = delete;

  static bool is_open();
};

}  // namespace fsdp::shard
