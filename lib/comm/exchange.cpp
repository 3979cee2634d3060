#include "comm/exchange.h"

#include <vector>

namespace fsdp::comm {

void Exchange::swap_with_all(int rank, int size, int tag, const std::function<at::Tensor(int)>& from,
                             const std::function<at::Tensor(int)>& to) {
  std::vector<Transfer> transfers;
  for (int i = 1; i < size; ++i) {
    const int other = (rank - i + size) % size;
    const at::Tensor theirs = from(other);
    if (theirs.numel() > 0) transfers.push_back(receive(other, tag, theirs));
  }
  for (int i = 1; i < size; ++i) {
    const int other = (rank + i) % size;
    const at::Tensor ours = to(other);
    if (ours.numel() > 0) transfers.push_back(send(other, tag, ours));
  }
  for (const Transfer& transfer : transfers) wait(transfer);
}

}  // namespace fsdp::comm
