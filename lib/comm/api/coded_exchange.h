#pragma once

// Coded collectives over an exchange. Parts travel in pieces, so that a rank encodes and decodes while the
// links are busy: over 1 Gbit/s, the codes of a part take about as long as half of its transfer.

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <functional>

#include "comm/api/coding.h"
#include "comm/api/communicator.h"
#include "comm/api/exchange.h"

namespace fsdp::comm {

/// The pieces of parts of `numel` numbers each. Every piece has a code of its own; together they have as many
/// bytes as the code of a part, and decode to the same numbers.
class CodedPieces {
 public:
  CodedPieces(LinkType type, int64_t numel) : type_(type), numel_(numel) {}

  int64_t count() const { return (numel_ + kCodedPiece - 1) / kCodedPiece; }
  int64_t bytes(int64_t piece) const { return link_bytes(type_, length(piece), 0); }
  /// Bytes of the pieces before this one.
  int64_t bytes_before(int64_t piece) const { return piece * link_bytes(type_, kCodedPiece, 0); }

  at::Tensor of_values(const at::Tensor& part, int64_t piece) const {
    return part.view({-1}).narrow(0, piece * kCodedPiece, length(piece));
  }
  at::Tensor of_bytes(const at::Tensor& part, int64_t piece) const {
    return part.narrow(0, bytes_before(piece), bytes(piece));
  }
  CodeRounding of_rounding(CodeRounding part, int64_t piece) const;

 private:
  int64_t length(int64_t piece) const { return std::min(kCodedPiece, numel_ - piece * kCodedPiece); }

  LinkType type_;
  int64_t numel_;
};

/// Collectives of the members of an exchange.
class CodedExchange {
 public:
  /// `rank` of `size` members.
  CodedExchange(Exchange& exchange, int rank, int size) : exchange_(exchange), rank_(rank), size_(size) {}

  struct Gather {
    int tag;
    at::Tensor input;  ///< [n]
    CodingPtr coding;
    /// Place of a piece of the code of a member's input.
    std::function<at::Tensor(int member, int64_t piece)> place;
    /// Called once the piece of this member is there.
    std::function<void(int member, int64_t piece)> take;
  };
  void all_gather(const Gather& gather);

  struct Reduction {
    int tag;
    at::Tensor output;  ///< [n]; may be a part of this member
    CodingPtr coding;
    FinishSums finish;  ///< may be empty
    /// Numbers [n] that this member sends to `member`, or adds itself. Called once for each; for itself while
    /// the transfers are under way. The tensors stay as they are until the call returns.
    std::function<at::Tensor(int member)> part;
  };
  void reduce_scatter(const Reduction& reduction);

 private:
  Exchange& exchange_;
  int rank_, size_;
  at::Tensor codes_;  ///< scratch
};

}  // namespace fsdp::comm
