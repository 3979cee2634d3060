#pragma once

// GlooExchange: tensors sent from memory to memory between the ranks of a group, over gloo (TCP).
//
// Transfers run beside each other and are waited for one by one. What the ranks of a pair send each other
// under one tag arrives in the order of sending; a transfer that finds none of its tag on the other side
// waits until the time is up. One thread a rank uses an exchange.
//
// After a failure nothing can be sent any more: close() lets the others know.

#include <ATen/core/Tensor.h>

#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "comm/gloo_place.h"

namespace fsdp::comm {

class GlooExchange {
 public:
  /// Under way; destroyed without waiting, it is given up.
  using Transfer = c10::intrusive_ptr<c10d::Work>;

  /// Collective over the `size` members; `prefix` in the store is theirs alone. Throws, as all that follow
  /// do, Error(kTimeout) or Error(kPeerLost) with what gloo says.
  GlooExchange(const GlooPlace& place, const std::string& prefix, int rank, int size);
  ~GlooExchange();
  GlooExchange(const GlooExchange&) = delete;
  GlooExchange& operator=(const GlooExchange&) = delete;

  /// Contiguous tensors of at least one element, untouched until the transfer is done. The two sides must
  /// give as many bytes; `tag` is not negative.
  Transfer send(int to, int tag, const at::Tensor& tensor);
  Transfer receive(int from, int tag, const at::Tensor& tensor);
  void wait(const Transfer& transfer);

  /// Closes the connections: whoever waits for this rank fails at once.
  void close();

 private:
  c10::intrusive_ptr<c10d::ProcessGroupGloo> process_group_;
};

}  // namespace fsdp::comm
