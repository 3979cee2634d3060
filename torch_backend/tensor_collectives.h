#pragma once

// TensorCollectives: the collectives of PyTorch's c10d over shared memory, for tensors in host memory of any
// type and layout. The communicator takes sums and maxima. Collectives that only move tensors move bytes. All
// other reductions gather the ranks' elements and combine them in rank order, so that all ranks have the same
// bits.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "comm/api/communicator.h"
#include "comm/shm/shm_group.h"

namespace fsdp::comm {

/// Each method is collective and complete when it returns. Used by one thread at a time. Throws util::Error,
/// also for ranks in different collectives; the group must not be used after that.
class TensorCollectives {
 public:
  using Op = c10d::ReduceOp::RedOpType;
  using Tensors = std::vector<at::Tensor>;

  /// `name` is the group's name in messages. Collective.
  TensorCollectives(const std::shared_ptr<ShmGroup>& group, std::string name);

  int rank() const { return group_->identity().rank; }
  int size() const { return group_->identity().size(); }
  Communicator& communicator() { return *communicator_; }
  /// Sets the time-out of later collectives.
  void set_timeout(double seconds) { group_->set_timeout(seconds); }

  void barrier();
  void broadcast(const at::Tensor& tensor, int root);
  void all_reduce(const at::Tensor& tensor, Op op);
  /// all_reduce() that leaves the tensors of all ranks but `root` as they are.
  void reduce(const at::Tensor& tensor, Op op, int root);
  /// output [n] = part rank() of the all_reduce() of the inputs [W * n].
  void reduce_scatter(const at::Tensor& output, const at::Tensor& input, Op op);
  /// The same with a tensor for each rank, which may differ in size.
  void reduce_scatter(const at::Tensor& output, const Tensors& inputs, Op op);
  /// output [W * n] = the inputs [n] in rank order.
  void all_gather(const at::Tensor& output, const at::Tensor& input);
  /// The same with a tensor for each rank.
  void all_gather(const Tensors& outputs, const at::Tensor& input);
  /// all_gather() with outputs on `root` alone; `outputs` is empty on other ranks.
  void gather(const Tensors& outputs, const at::Tensor& input, int root);
  /// output = input rank() of `root`; inputs are empty on others.
  void scatter(const at::Tensor& output, const Tensors& inputs, int root);
  /// output i = input rank() of rank i, of any sizes.
  void all_to_all(const Tensors& outputs, const Tensors& inputs);

 private:
  struct Wanted {
    int from;
    int64_t begin;  ///< offset in the bytes that that rank shows
    at::Tensor to;  ///< contiguous
  };
  struct Show {
    std::string what;     ///< described()
    int32_t dtype = 0;    ///< the same on all ranks, like longest and root
    int64_t longest = 0;  ///< bytes of the rank that shows most
    int root = 0;
    Tensors mine{};  ///< contiguous tensors that this rank shows, one after another
    std::vector<Wanted> wanted{};
  };

  CallSite site(const at::Tensor& tensor) const;
  void gather_from_all(const char* name, const Tensors& outputs, const at::Tensor& input, int root);
  Show show_of(const char* name, const at::Tensor& tensor) const;
  /// Exchanges the bytes that the ranks show, from byte `begin` on.
  void show(const Show& call, int64_t begin = 0);
  void show_piece(const Show& call, int64_t begin);
  void take_piece(const Show& call, int64_t begin);
  /// The bytes that a rank shows; valid until the next meeting.
  const std::byte* shown_by(int peer) const;
  void combine_gathered(const at::Tensor& flat, Op op);
  void divide(const at::Tensor& sums) const;

  const std::shared_ptr<ShmGroup> group_;
  const std::string name_;
  const std::shared_ptr<Communicator> communicator_;
};

/// "Float[1024]".
std::string shown(const at::Tensor& tensor);

}  // namespace fsdp::comm
