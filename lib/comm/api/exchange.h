#pragma once

// Point-to-point transfers between the ranks of a group.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace fsdp::comm {

/// Tag for transfers of tensors of this size and type for the purpose `seed`. Other collectives have other
/// tags, so that data is not mixed up.
int transfer_tag(uint64_t seed, const at::Tensor& tensor);

/// Transfers run concurrently and are waited for one by one. Transfers between two ranks with the same tag
/// arrive in the order of sending. Used by one thread per rank. After a failure the exchange cannot be used
/// again.
class Exchange {
 public:
  /// A transfer in progress. Destroying it without waiting abandons it.
  using Transfer = c10::intrusive_ptr<c10d::Work>;

  virtual ~Exchange() = default;

  /// Tensors must be contiguous, have at least one element, and not be touched until the transfer is done.
  /// Both sides must give the same number of bytes; `tag` must not be negative.
  virtual Transfer send(int to, int tag, const at::Tensor& tensor) = 0;
  virtual Transfer receive(int from, int tag, const at::Tensor& tensor) = 0;
  virtual void wait(const Transfer& transfer) = 0;
  /// Makes ranks that wait for this rank fail at once.
  virtual void close() = 0;

  /// Receives `from(other)` from each other rank and sends `to(other)` to it; empty tensors are skipped.
  /// Receives are posted first: gloo announces them in the connection that carries the data, so behind a
  /// large send an announcement would hold up the peer, and links would carry one direction at a time. If a
  /// peer is lost, the error is thrown only after the other ranks have their tensors: they do not wait for
  /// this rank, and all name the same lost rank.
  void swap_with_all(int rank, int size, int tag, const std::function<at::Tensor(int)>& from,
                     const std::function<at::Tensor(int)>& to);

  /// swap_with_all() of parts that consist of pieces, all of them with the same number of pieces.
  struct Pieces {
    int64_t count;
    std::function<at::Tensor(int other, int64_t piece)> from;  ///< called for all pieces first
    std::function<at::Tensor(int other, int64_t piece)> to;    ///< called when the piece can be sent
    std::function<void()> meanwhile;                           ///< called once all pieces are under way
    std::function<void(int64_t piece)> arrived;                ///< this piece is there from all others
  };
  /// If a peer is lost, pieces that are not there from all others are not given to `arrived`.
  void swap_pieces(int rank, int size, int tag, const Pieces& pieces);
};

}  // namespace fsdp::comm
