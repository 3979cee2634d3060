#include "comm/api/exchange.h"

#include <exception>
#include <vector>

#include "base/util/error.h"
#include "base/util/hash.h"

namespace fsdp::comm {

int transfer_tag(uint64_t seed, const at::Tensor& tensor) {
  uint64_t tag = util::mix64(seed);
  if (tensor.defined()) {
    tag = util::mix64(tag ^ static_cast<uint64_t>(tensor.scalar_type()));
    tag = util::mix64(tag ^ static_cast<uint64_t>(tensor.numel()));
  }
  return static_cast<int>(tag & 0x7fffffff);
}

void Exchange::swap_with_all(int rank, int size, int tag, const std::function<at::Tensor(int)>& from,
                             const std::function<at::Tensor(int)>& to) {
  std::vector<Transfer> transfers;
  std::exception_ptr lost;
  // If a peer is lost, all ranks fail. The others still get their tensors, and notice the loss themselves.
  const auto attempt = [&lost](const auto& body) {
    try {
      body();
    } catch (const util::Error& error) {
      if (error.kind() != ErrorKind::kPeerLost) throw;
      if (!lost) lost = std::current_exception();
    }
  };
  for (int i = 1; i < size; ++i) {
    const int other = (rank - i + size) % size;
    const at::Tensor theirs = from(other);
    if (theirs.numel() > 0) attempt([&] { transfers.push_back(receive(other, tag, theirs)); });
  }
  for (int i = 1; i < size; ++i) {
    const int other = (rank + i) % size;
    const at::Tensor ours = to(other);
    if (ours.numel() > 0) attempt([&] { transfers.push_back(send(other, tag, ours)); });
  }
  for (const Transfer& transfer : transfers) attempt([&] { wait(transfer); });
  if (lost) std::rethrow_exception(lost);
}

}  // namespace fsdp::comm
