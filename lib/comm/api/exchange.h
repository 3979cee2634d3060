#pragma once

// Point-to-point transfers between the ranks of a group.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace fsdp::comm {

/// A tag for transfers of tensors of this size and type for the purpose `seed`: one in another collective has
/// another tag, so that data is not mixed up.
int transfer_tag(uint64_t seed, const at::Tensor& tensor);

/// Transfers run concurrently and are waited for one by one. Those between two ranks with the same tag arrive in the
/// order of sending. One thread per rank. After a failure the exchange cannot be used again; close() makes the others notice.
class Exchange {
 public:
  /// In progress; destroying it without waiting abandons it.
  using Transfer = c10::intrusive_ptr<c10d::Work>;

  virtual ~Exchange() = default;

  /// Contiguous tensors of at least one element, which must not be touched until the transfer is done. Both
  /// sides must give the same number of bytes; `tag` must not be negative.
  virtual Transfer send(int to, int tag, const at::Tensor& tensor) = 0;
  virtual Transfer receive(int from, int tag, const at::Tensor& tensor) = 0;
  virtual void wait(const Transfer& transfer) = 0;
  /// Ranks that wait for this one fail at once.
  virtual void close() = 0;

  /// Receives `from(other)` from each other rank and sends it `to(other)`; empty tensors are not transferred. Done at
  /// the return. Receiving is announced first: gloo's announcement travels in the connection that carries the data, so
  /// behind a tensor it would hold up the other side's until that has arrived, and links would carry one direction at a
  /// time. Where a peer is gone, throws only when the others have their tensors: they do not wait for this rank, and
  /// all name the same one.
  void swap_with_all(int rank, int size, int tag, const std::function<at::Tensor(int)>& from,
                     const std::function<at::Tensor(int)>& to);
};

}  // namespace fsdp::comm
